package condition_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// TestEvaluate_ComparesObjects checks that objects can be compared with objects and with other values.
func TestEvaluate_ComparesObjects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, args, want string }{
		{`args.a == args.b`, `{"a":{"x":1,"y":[2]},"b":{"y":[2],"x":1}}`, "true"},
		{`args.a == args.b`, `{"a":{"x":1},"b":{"x":2}}`, "false"},
		{`args.a == args.b`, `{"a":{"x":1},"b":{"z":1}}`, "false"},
		{`args.a == args.b`, `{"a":{"x":1},"b":{"x":1,"y":1}}`, "false"},
		{`args.a == args.b`, `{"a":{"x":1,"y":1},"b":{"x":1}}`, "false"},
		{`args.a == args.b`, `{"a":{},"b":{}}`, "true"},
		{`args.a == args.b`, `{"a":{"x":1},"b":["x"]}`, "false"},
		{`args.a == args.b`, `{"a":{},"b":[]}`, "false"},
		{`args.a == args.b`, `{"a":{},"b":null}`, "false"},
		{`args.a == {"x": 1}`, `{"a":{"x":1}}`, "true"},
		{`args.a == {"x": 1}`, `{"a":{"x":"1"}}`, "false"},
		{`{"x": 1} == args.a`, `{"a":{"x":1}}`, "true"},
		{`"x" in args.a && !("y" in args.a)`, `{"a":{"x":null}}`, "true"},
		{`size(args.a) == 2`, `{"a":{"x":1,"y":2}}`, "true"},
		{`args.a[1] == 1`, `{"a":{"x":1}}`, "no such key"},
	} {
		held, err := holds(compile(t, tt.text), arguments(t, tt.args))
		if got := answer(held, err); got != tt.want && (err == nil || tt.want != "no such key") {
			t.Errorf("%s for %s: %s; want %s", tt.text, tt.args, got, tt.want)
		}
	}
}

// TestParseArguments_FailsForInvalidJSON checks that invalid JSON is an error at any depth, inside and outside of the
// arguments.
func TestParseArguments_FailsForInvalidJSON(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		`{`, `{"name":`, `{"name":tru}`, `{1:2}`, `{"name":"x",}`, `{"name":"x","name":"y"}`, `{"_meta":{"a":1,"a":2}}`, `{"arguments":{"a":1}`,
		`{"arguments":{"a":[1,]}}`, `{"arguments":{"a":[`, `{"arguments":{"a":[tru]}}`, `{"arguments":{"a":{"b":`, `{"arguments":{"a":[{"b":1,"b":2}]}}`,
		`{"arguments":{"a":[1}]}`, `{"arguments":{"a":"\ud800"}}`, `{"arguments":{},"arguments":{}}`,
	} {
		if _, err := condition.ParseArguments(params); err == nil || !strings.HasPrefix(err.Error(), "read the params: ") {
			t.Errorf("%s: %v", params, err)
		}
	}
}

func TestCompile_TextHasAMaximumLength(t *testing.T) {
	t.Parallel()
	text := `args.a == "` + strings.Repeat("a", condition.MaxBytes-len(`args.a == ""`)) + `"`
	if _, err := condition.Compile(text); err != nil {
		t.Error(err)
	}
	if _, err := condition.Compile(text + " "); err == nil || !strings.Contains(err.Error(), "longer than 2048 bytes") {
		t.Error(err)
	}
}
