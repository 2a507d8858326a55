package classify_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// What is not looked at may do anything: the tool is unsure, and the evidence says where reading ended.
func TestClassify_WhatIsCutIsSaidAndMakesTheToolUnsure(t *testing.T) {
	t.Parallel()
	var many, deep, values strings.Builder
	for i := range 300 {
		fmt.Fprintf(&many, `"p%d":{},`, i)
		fmt.Fprintf(&values, `"list%d",`, i)
	}
	for range 40 {
		deep.WriteString(`{"properties":{"p":`)
	}
	deep.WriteString(`{"properties":{"command":{}}}` + strings.Repeat(`}}`, 40))
	for name, schema := range map[string]string{
		"many parameters":         `{"properties":{` + many.String() + `"command":{}}}`,
		"many inner parameters":   `{"properties":{"options":{"properties":{` + many.String() + `"command":{}}}}}`,
		"deep parameters":         deep.String(),
		"many values of a choice": `{"properties":{"action":{"enum":[` + values.String() + `"delete"]}}}`,
	} {
		tool, err := classify.Read([]byte(`{"name":"get_info","description":"Gets information.","inputSchema":` + schema + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got := classify.Classify(tool, false)
		said := slices.ContainsFunc(got.GetEvidence(), func(e *policyv1.Evidence) bool { return strings.Contains(e.GetMeaning(), "looked at") })
		if got.GetCategory() == mcpv1.Category_CATEGORY_READ || got.GetConfidence() >= classify.Unsure || !said {
			t.Errorf("%s: %v", name, got)
		}
		well(t, tool, false)
	}
	tool, err := classify.Read([]byte(`{"name":"get_info","description":"Gets information.` + strings.Repeat(" And so on", 200) + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := classify.Classify(tool, false); !slices.ContainsFunc(got.GetEvidence(), func(e *policyv1.Evidence) bool { return strings.Contains(e.GetMeaning(), "not looked at") }) {
		t.Errorf("a long description: %v", got)
	}
}

// A schema that refers to itself, or to much, costs little.
func TestRead_SchemaThatRefersToItselfIsBounded(t *testing.T) {
	t.Parallel()
	var defs strings.Builder
	for i := range 200 {
		fmt.Fprintf(&defs, `"d%d":{"properties":{`, i)
		for j := range 50 {
			fmt.Fprintf(&defs, `"p%d":{"$ref":"#/$defs/d%d"},`, j, (i+j)%200)
		}
		defs.WriteString(`"x":{}}},`)
	}
	tool, err := classify.Read([]byte(`{"name":"get","inputSchema":{"$defs":{` + defs.String() + `"e":{}},"properties":{"a":{"$ref":"#/$defs/d0"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(tool.Nested) > 1024 || tool.Cut.Path == "" {
		t.Errorf("it has %d inner parameters, and %q was left out", len(tool.Nested), tool.Cut.Path)
	}
}
