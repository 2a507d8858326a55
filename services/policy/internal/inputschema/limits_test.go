package inputschema_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
)

// Compile refuses schemas that are too large, or that refer to a file.
func TestCompile_RefusesWhatExceedsItsBounds(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(file, []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	nested := func(n int) string { return strings.Repeat(`{"not":`, n) + "{}" + strings.Repeat("}", n) }
	properties := func(n int, schema string) string {
		members := make([]string, n)
		for i := range members {
			members[i] = fmt.Sprintf(`"a%d":%s`, i, schema)
		}
		return `{"properties":{` + strings.Join(members, ",") + `}}`
	}
	for name, tt := range map[string]struct{ schema, want string }{
		"63 levels":             {nested(63), ""},
		"65 levels":             {nested(65), "it is nested more than 64 deep"},
		"3,900 subschemas":      {properties(3_900, "{}"), ""},
		"4,001 subschemas":      {properties(4_001, "{}"), "it has too many parts"},
		"4,001 booleans":        {properties(4_001, "true"), "it has too many parts"},
		"20,001 values":         {`{"enum":[` + strings.Repeat("1,", 20_000) + `1]}`, "it has too many parts"},
		"300 KiB":               {`{"description":"` + strings.Repeat("x", 300<<10) + `"}`, "the definition has more than 262144 bytes"},
		"an exponent":           {`{"minimum":1e401}`, "the exponent of a number is not between -400 and 400"},
		"a huge exponent":       {`{"minimum":1e-99999999999999999999}`, "the exponent of a number is not between -400 and 400"},
		"digits":                {`{"minimum":` + strings.Repeat("1", 65) + `}`, "a number has more than 64 bytes"},
		"a large pattern":       {`{"pattern":"(abcd){900}"}`, "a pattern in it is too large"},
		"a large class":         {`{"pattern":"[\\pL]{900}"}`, "a pattern in it is too large"},
		"many patterns":         {properties(30, `{"pattern":"(abc){400}"}`), "a pattern in it is too large"},
		"a pattern of draft-07": {`{"$schema":"http://json-schema.org/draft-07/schema#","pattern":"(?=x)"}`, "a pattern in it is not a regular expression of RE2"},
		"a file":                {`{"$ref":"file://` + file + `"}`, "refers to another document"},
		"a draft in a file":     {`{"$schema":"file://` + file + `"}`, "refers to another document"},
		"$dynamicRef":           {`{"$dynamicRef":"#x","$dynamicAnchor":"x"}`, "$dynamicRef or $recursiveRef"},
		"a metaschema":          {`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, "$dynamicRef or $recursiveRef"},
		"a repeated name":       {`{"type":"object","type":"string"}`, "the definition can't be read"},
		"a boolean":             {`true`, "it is not an object"},
	} {
		_, err := inputschema.Compile(`{"name":"x","inputSchema":` + tt.schema + `}`)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Arguments that can't be read are refused, even if the schema allows everything.
func TestCheck_RefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	schema, err := inputschema.Compile(`{"inputSchema":{"additionalProperties":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	for params, want := range map[string]string{
		"": "", "{}": "", `{"arguments":{"a":1e400}}`: "", `{"_meta":{"a":1e99999},"arguments":{}}`: "",
		`{"arguments":{"a":1e401}}`:                "the exponent of a number is not between",
		`{"arguments":null}`:                       "the arguments are not a JSON object",
		`{"arguments":"{}"}`:                       "the arguments are not a JSON object",
		`{"arguments":{"a":1,"a":2}}`:              "read the params",
		`{"arguments":{},"arguments":{"a":1}}`:     "read the params",
		`{"arguments":{}} {}`:                      "something follows the params",
		`{"arguments":{}`:                          "the params are not a JSON object",
		`[]`:                                       "the params are not a JSON object",
		"{\"arguments\":{\"a\":\"\xff\"}}":         "read the params",
		`{"arguments":` + strings.Repeat("[", 100): "read the params",
		`{"arguments":{"a":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}}`:      "it is nested more than 64 deep",
		`{"arguments":{"a":[` + strings.Repeat("1,", 100_000) + `1]}}`:                       "the arguments have more than 100000 values",
		`{"arguments":{"` + strings.Repeat("x", 200) + `":` + strings.Repeat("1", 65) + `}}`: "a number has more than 64 bytes",
	} {
		err := schema.Check(params)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", params, err, want)
		}
	}
}
