package inputschema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

// For every definition and all params, neither Compile nor Check panics, and repeating a check gives the same result.
func FuzzCheck(f *testing.F) {
	for _, p := range readPairs(f) {
		f.Add(`{"name":"x","inputSchema":`+string(p.Schema)+`}`, `{"arguments":`+string(p.Arguments)+`}`)
	}
	f.Add(`{"inputSchema":{"$ref":"#"}}`, "")
	f.Add(`{"inputSchema":{"properties":{"a":{"minLength":1e400,"pattern":"(((a{9}){9}){9}){9}"}}}}`, `{"arguments":{"a":1e-400}}`)
	f.Add(`{"inputSchema":{"$dynamicRef":"#x","$dynamicAnchor":"x"}}`, `{"arguments":null}`)
	f.Fuzz(func(t *testing.T, definition, params string) {
		schema, err := inputschema.Compile(definition)
		if err != nil {
			if _, ok := errors.AsType[*inputschema.UnusableError](err); !ok {
				t.Errorf("Compile returned the error %v", err)
			}
			return
		}
		first, second := schema.Check(params), schema.Check(params)
		if (first == nil) != (second == nil) || first != nil && first.Error() != second.Error() {
			t.Errorf("got %v, then %v", first, second)
		}
		if first != nil && (len(first.Error()) > 1024 || strings.ContainsAny(first.Error(), "\n\x00")) {
			t.Errorf("the message is %q", first)
		}
	})
}
