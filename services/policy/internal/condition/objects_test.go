package condition_test

import "testing"

// TestEvaluate_ComparesObjects checks comparisons of objects with objects and with other values.
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
