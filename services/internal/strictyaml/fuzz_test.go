package strictyaml_test

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// FuzzDecode checks that every error is a list of problems. Each problem has a position in the document, and its
// message is one line without control characters.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"", "name: x\nrate_limit: {max: 10, window: 60s}", "a: &a [*a]", "<<: {}", "? [a]\n: b", "- - - x",
		"limits: {a.b: {max: 1}}", "on: yes\nsmall: 0x10\n", "name: |\n  text\n", "%YAML 1.1\n---\na: 1", "\ufeffname: x",
		`{"name": "\u001b", "anything": [1e3, -0, {}]}`, "raw: !!binary aGk=", "a: 1\n---\n", "'': ''\n", "many: [{max: 1}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got target
		err := decode("f", text, &got)
		if err == nil {
			return
		}
		problems, ok := errors.AsType[strictyaml.Errors](err)
		if !ok || len(problems) == 0 || len(problems) > 100 {
			t.Fatalf("%T with %d problems", err, len(problems))
		}
		lines := strings.Count(string(text), "\n") + strings.Count(string(text), "\r") + 2 // the last line may be after the end of the document
		for _, p := range problems {
			if p.Line < 0 || p.Line > lines || (p.Line > 0) != (p.Column > 0) {
				t.Errorf("place %d:%d in %q", p.Line, p.Column, text)
			}
			if i := strings.IndexFunc(p.Error(), func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
				t.Errorf("%q has an unprintable character at %d", p.Error(), i)
			}
		}
	})
}

// FuzzDecodeAgreesWithJSON checks that a JSON document has the same value whether it is read as YAML or as JSON.
func FuzzDecodeAgreesWithJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a": 1, "b": [true, null, "x", -0.5e3], "c": {"d": ""}}`, `["\u00e9\n\/", " # no comment", "a: b", "- x"]`,
		`{"<<": 1}`, `["~", "yes", "1", "2026-01-01"]`, `[1E400]`, "[\"\u2028\", \"\u0085\"]", `{"a":1,"a":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want, got any
		if json.Unmarshal(text, &want) != nil || want == nil {
			return
		}
		if err := decode("f", text, &got); err != nil {
			return // YAML may be stricter than JSON
		}
		if diff := cmp.Diff(want, floats(got)); diff != "" {
			t.Errorf("%q (-JSON +YAML):\n%s", text, diff)
		}
	})
}

// floats converts whole numbers to floats, as a JSON parser does.
func floats(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = floats(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = floats(v[key])
		}
	}
	return v
}
