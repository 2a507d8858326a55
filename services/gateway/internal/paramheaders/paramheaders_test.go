package paramheaders_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func tool(properties string) []byte {
	return []byte(`{"name":"t","inputSchema":{"type":"object","properties":{` + properties + `}}}`)
}

func TestBindings_FollowAnnotations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, properties string
		want             []paramheaders.Binding
	}{
		{"none", `"a":{"type":"string"}`, nil},
		{"two, one of them deep", `"o":{"type":"object","properties":{"b":{"type":"integer","x-mcp-header":"Size"}}},"a":{"type":"string","x-mcp-header":"Region"}`,
			[]paramheaders.Binding{{Path: []string{"a"}, Header: "Mcp-Param-Region"}, {Path: []string{"o", "b"}, Header: "Mcp-Param-Size"}}},
		{"of an object", `"a":{"type":"object","x-mcp-header":"A"}`, nil},
		{"of a number", `"a":{"type":"number","x-mcp-header":"A"}`, nil},
		{"no field's name", `"a":{"type":"string","x-mcp-header":"A: b"}`, nil},
		{"an empty name", `"a":{"type":"string","x-mcp-header":""}`, nil},
		{"no text", `"a":{"type":"string","x-mcp-header":7}`, nil},
		{"one name twice, in another case", `"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}`, nil},
		{"one bad among good ones", `"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"array","x-mcp-header":"B"}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, paramheaders.Bindings(tool(tt.properties))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if got := paramheaders.Bindings([]byte(`{"name":"t","inputSchema":"x-mcp-header"}`)); got != nil {
		t.Errorf("a definition without a schema has %v", got)
	}
}

// Headers that a client sends must match the arguments. The headers that the gateway sends are derived from the
// arguments.
func TestHeaders_MustAgreeWithArguments(t *testing.T) {
	t.Parallel()
	bindings := paramheaders.Bindings(tool(`"a":{"type":"string","x-mcp-header":"A"},"o":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}`))
	a, n := "Mcp-Param-A", "Mcp-Param-N"
	type head = map[string]string
	for _, tt := range []struct {
		name, arguments string
		head            head
		want            []upstream.Header // nil if the headers do not match the arguments
	}{
		{"both", `{"a":"x","o":{"n":7}}`, head{a: "x", n: "7"}, []upstream.Header{{Name: a, Value: "x"}, {Name: n, Value: "7"}}},
		{"in base64", `{"a":"ü\n"}`, head{a: "=?base64?w7wK?="}, []upstream.Header{{Name: a, Value: "ü\n"}}},
		{"text that looks encoded at one end", `{"a":"=?base64?x"}`, head{a: "=?base64?x"}, []upstream.Header{{Name: a, Value: "=?base64?x"}}},
		{"no base64", `{"a":"x"}`, head{a: "=?base64?e?="}, nil},
		{"another value", `{"a":"x"}`, head{a: "y"}, nil},
		{"another case", `{"a":"x"}`, head{a: "X"}, nil},
		{"none in the head", `{"a":"x"}`, nil, nil},
		{"none in the arguments", `{}`, head{a: "x"}, nil},
		{"null", `{"a":null}`, head{a: "null"}, nil},
		{"no arguments", ``, head{a: "x"}, nil},
		{"neither", `{"o":{}}`, nil, []upstream.Header{}},
		{"an empty text", `{"a":""}`, nil, []upstream.Header{{Name: a}}},
		{"a boolean", `{"a":true}`, head{a: "true"}, []upstream.Header{{Name: a, Value: "true"}}},
		{"one integer in two ways", `{"o":{"n":1e2}}`, head{n: "100.0"}, []upstream.Header{{Name: n, Value: "100"}}},
		{"one text in two ways", `{"a":"100"}`, head{a: "1e2"}, nil},
		{"an integer in another language", `{"o":{"n":16}}`, head{n: "0x10"}, nil},
		{"no integer", `{"o":{"n":1.5}}`, head{n: "1.5"}, nil},
		{"an unsafe integer", `{"o":{"n":9007199254740993}}`, head{n: "9007199254740993"}, nil},
		{"an object", `{"a":{}}`, head{a: "{}"}, nil},
		{"no object on the way", `{"o":7}`, nil, []upstream.Header{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := paramheaders.Headers([]byte(tt.arguments), bindings, func(header string) string { return tt.head[header] })
			if tt.want == nil {
				if !errors.Is(err, paramheaders.ErrMismatch) {
					t.Errorf("got %v, %v, want a mismatch", got, err)
				}
				return
			}
			if err != nil || len(got) != len(tt.want) || len(got) > 0 && !cmp.Equal(got, tt.want) {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

// FuzzHeaders generates schemas and arguments. It checks that the headers that the gateway sends decode to the values
// of the arguments.
func FuzzHeaders(f *testing.F) {
	f.Add(`"a":{"type":"string","x-mcp-header":"A"}`, `{"a":"x"}`, "x")
	f.Add(`"a":{"type":"integer","x-mcp-header":"A"}`, `{"a":1e3}`, "1000")
	f.Add(`"a":{"properties":{"b":{"type":"boolean","x-mcp-header":"A"}}}`, `{"a":{"b":true}}`, "=?base64?dHJ1ZQ==?=")
	f.Fuzz(func(t *testing.T, properties, arguments, field string) {
		bindings := paramheaders.Bindings(tool(properties))
		got, err := paramheaders.Headers([]byte(arguments), bindings, func(string) string { return field })
		if err != nil {
			return
		}
		reread, err := paramheaders.Headers([]byte(arguments), bindings, func(header string) string {
			for _, h := range got {
				if h.Name == header {
					return mcp.EncodeHeader(h.Value)
				}
			}
			return ""
		})
		if err != nil || !cmp.Equal(got, reread) {
			t.Errorf("%v is read back as %v, %v", got, reread, err)
		}
	})
}
