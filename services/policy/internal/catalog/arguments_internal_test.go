package catalog

import (
	"slices"
	"strings"
	"testing"
)

func TestArgumentNames(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string][]string{
		`{"type":"object","properties":{"path":{},"content":{"type":"string"}}}`: {"content", "path"},
		`{"properties":{"a":{}},"additionalProperties":false}`:                   {"a"},
		`{"properties":{"a":{}},"additionalProperties":true}`:                    nil,
		`{"properties":{"a":{}},"additionalProperties":{}}`:                      nil,
		`{"properties":{"a":{}},"patternProperties":{"^x-":{}}}`:                 nil,
		`{"properties":{"a":{}},"anyOf":[{"required":["b"]}]}`:                   nil,
		`{"type":"object"}`: nil,
		`{"properties":{}}`: nil,
		`true`:              nil,
		`{"properties":{"a":{},"` + strings.Repeat("b", 2048) + `":{}}}`: nil,
		`null`: nil,
	} {
		if got := argumentNames(`{"name":"t","inputSchema":` + schema + `}`); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", schema, got, want)
		}
	}
}
