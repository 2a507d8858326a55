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

// TestClassify_IsUncertainWhenPartsAreNotRead checks that the class is uncertain if parts of a definition were not
// read, and that the evidence names the first unread part.
func TestClassify_IsUncertainWhenPartsAreNotRead(t *testing.T) {
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
		evidence := slices.ContainsFunc(got.GetEvidence(), func(e *policyv1.Evidence) bool { return strings.Contains(e.GetMeaning(), "looked at") })
		if got.GetCategory() == mcpv1.Category_CATEGORY_READ || got.GetConfidence() >= classify.Unsure || !evidence {
			t.Errorf("%s: %v", name, got)
		}
		checkClassification(t, tool, false)
	}
	tool, err := classify.Read([]byte(`{"name":"get_info","description":"Gets information.` + strings.Repeat(" And so on", 200) + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := classify.Classify(tool, false); !slices.ContainsFunc(got.GetEvidence(), func(e *policyv1.Evidence) bool { return strings.Contains(e.GetMeaning(), "not looked at") }) {
		t.Errorf("a long description: %v", got)
	}
}

// TestRead_SchemaThatRefersToItselfIsBounded checks schemas that refer to themselves, or to large definitions.
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

// TestClassify_HostileSchemasAndTextsAreBounded classifies definitions with long texts and deep schemas, and checks
// that the number of inner parameters is limited. Earlier versions took minutes, because they read long texts once for
// each verb and deep schemas once for each level.
func TestClassify_HostileSchemasAndTextsAreBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	for name, definition := range map[string]string{
		"a long description":                `{"name":"get","description":"` + long + `"}`,
		"a long text of ideograms":          `{"name":"get","description":"` + strings.Repeat("字", 1<<18) + `"}`,
		"a long description of a parameter": `{"name":"get","inputSchema":{"properties":{"query":{"description":"` + long + `"}}}}`,
		"items in items":                    `{"name":"get","inputSchema":{"properties":{"a":` + strings.Repeat(`{"items":`, 4000) + `{"description":"` + long + `"}` + strings.Repeat(`}`, 4000) + `}}}`,
		"many references":                   `{"name":"get","inputSchema":{"$defs":{"d":{"description":"` + long + `"}},"properties":{"o":{"properties":{` + references(250) + `}}}}}`,
	} {
		tool, err := classify.Read([]byte(definition))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		classify.Classify(tool, false)
		if len(tool.Nested) > 1024 {
			t.Errorf("%s has %d inner parameters", name, len(tool.Nested))
		}
	}
}

func references(count int) string {
	var out strings.Builder
	for i := range count {
		fmt.Fprintf(&out, `"p%d":{"$ref":"#/$defs/d"},`, i)
	}
	return out.String() + `"z":{}`
}
