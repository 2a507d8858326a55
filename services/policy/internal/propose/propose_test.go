package propose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/propose"
)

// times returns n calls with each of the given arguments.
func times(n int, arguments ...string) (out []propose.Call) {
	for _, one := range arguments {
		for range n {
			out = append(out, propose.Call{Arguments: one})
		}
	}
	return out
}

// required returns the schema of a tool that has the given required arguments, and no other arguments.
func required(names ...string) engine.Schema {
	out := engine.Schema{Arguments: make(map[string]engine.Argument), Closed: true}
	for _, name := range names {
		out.Arguments[name] = engine.Argument{Required: true}
	}
	return out
}

// holds reports whether a condition is true for the given arguments.
func holds(t *testing.T, text, arguments string) bool {
	t.Helper()
	compiled, err := condition.Compile(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	in := condition.Input{}
	in.Args, in.ArgsError = condition.ParseArguments(propose.Call{Arguments: arguments}.Params())
	held, _ := compiled.Evaluate(&in)
	return held == condition.True
}

const home = "/srv/people/ana"

type boundTest struct {
	name   string
	calls  []propose.Call
	schema engine.Schema
	// want is the condition of the argument, or empty if it has no bound. note is a part of its note.
	want, note string
	// passes and refused contain arguments that were not observed. The derived condition must be true for those in
	// passes, and false for those in refused.
	passes, refused []string
}

var boundTests = []boundTest{
	{
		name: "a folder", calls: times(1, `{"path":"/srv/work/a.txt"}`, `{"path":"/srv/work/b/c.txt"}`), schema: required("path"),
		want: `path.within(args.path, "/srv/work")`, note: `a path in "/srv/work" (calls: 2)`,
		passes:  []string{`{"path":"/srv/work/new/d.txt"}`, `{"path":"/srv/work"}`, `{"path":"/srv/work/x/../e"}`},
		refused: []string{`{"path":"/srv/workshop"}`, `{"path":"/srv/work/../x"}`, `{"path":"/srv/work/%2e%2e/x"}`, `{"path":["/srv/work"]}`, `{"path":"/etc/passwd"}`, `{}`, `{"path":null}`},
	},
	{
		name: "one path", calls: times(4, `{"path":"/srv/work/a.txt"}`), schema: required("path"),
		want: `path.within(args.path, "/srv/work/a.txt")`, refused: []string{`{"path":"/srv/work/b.txt"}`},
	},
	{
		name: "only the root in common", calls: times(1, `{"path":"/srv/a"}`, `{"path":"/etc/b"}`), schema: required("path"),
		note: "no folder in common",
	},
	{
		name: "the root itself", calls: times(5, `{"path":"/"}`), schema: required("path"), note: "the root, a home folder",
	},
	{
		name: "the home folder", calls: times(1, `{"path":"/srv/people/ana/a"}`, `{"path":"/srv/people/ana/b"}`), schema: required("path"), note: "no folder in common",
	},
	{
		name: "above the home folder", calls: times(1, `{"path":"/srv/people/x/a"}`, `{"path":"/srv/people/y/b"}`), schema: required("path"), note: "no folder in common",
	},
	{
		name: "below the home folder", calls: times(1, `{"path":"/srv/people/ana/work/a"}`, `{"path":"/srv/people/ana/work/b"}`), schema: required("path"),
		want: `path.within(args.path, "/srv/people/ana/work")`, refused: []string{`{"path":"/srv/people/ana/.ssh/id"}`},
	},
	{
		name: "a usual home folder", calls: times(1, `{"path":"/home/eve/a"}`, `{"path":"/home/eve/b"}`), schema: required("path"), note: "no folder in common",
	},
	{
		name: "the home folder often", calls: times(5, `{"path":"/home/eve"}`), schema: required("path"), note: "the root, a home folder",
	},
	{
		name: "the home folder by a short name", calls: times(5, `{"path":"~"}`), schema: required("path"), note: "read in different ways",
	},
	{
		name: "the root by an argument that is no path", calls: times(5, `{"of":"~/"}`), schema: required("of"), note: "the root, a home folder",
	},
	{
		name: "a relative folder", calls: times(1, `{"file":"docs/a.md"}`, `{"file":"./docs/b.md"}`), schema: required("file"),
		want: `path.within(args.file, "docs")`, passes: []string{`{"file":"docs/c.md"}`}, refused: []string{`{"file":"docs/../x"}`, `{"file":"/docs/a.md"}`},
	},
	{
		name: "relative paths without a folder", calls: times(1, `{"file":"a.md"}`, `{"file":"b.md"}`), schema: required("file"), note: "no folder in common",
	},
	{
		name: "a URL", calls: times(1, `{"url":"https://api.example.com/v1"}`, `{"url":"https://API.example.com:443/v2?q=1"}`), schema: required("url"),
		want:    `url.scheme(args.url) == "https" && url.host(args.url) == "api.example.com" && url.port(args.url) == 443`,
		passes:  []string{`{"url":"https://api.example.com/"}`},
		refused: []string{`{"url":"http://api.example.com/"}`, `{"url":"https://api.example.com@evil/"}`, `{"url":"https://evil.example.com/"}`, `{"url":"https://api.example.com:8443/"}`},
	},
	{
		name: "different hosts", calls: times(1, `{"url":"https://a.example/"}`, `{"url":"https://b.example/"}`), schema: required("url"), note: "fewer than 3 calls",
	},
	{
		name: "few texts", calls: times(3, `{"kind":"a'b\"\\\u202e"}`, `{"kind":"b"}`), schema: required("kind"),
		want:   `args.kind in ["a'b\"\\\u202e", "b"]`,
		passes: nil, refused: []string{`{"kind":"c"}`, `{"kind":["b"]}`, `{"kind":"B"}`},
	},
	{
		name: "a text that is rare", calls: append(times(3, `{"kind":"a"}`), times(2, `{"kind":"b"}`)...), schema: required("kind"), note: "fewer than 3 calls",
	},
	{
		name: "many texts", calls: times(3, `{"q":"1"}`, `{"q":"2"}`, `{"q":"3"}`, `{"q":"4"}`, `{"q":"5"}`, `{"q":"6"}`, `{"q":"7"}`, `{"q":"8"}`, `{"q":"9"}`),
		schema: required("q"), note: "9 different texts",
	},
	{
		name: "a number", calls: times(1, `{"n":5}`, `{"n":12.50}`, `{"n":1e1}`), schema: required("n"),
		want: `decimal(args.n) >= decimal("0") && decimal(args.n) <= decimal("12.50")`, note: "from 0 to 12.50",
		passes: []string{`{"n":12.5}`, `{"n":0}`}, refused: []string{`{"n":12.51}`, `{"n":-1}`, `{"n":[1]}`, `{"n":true}`},
	},
	{
		name: "a negative number", calls: times(1, `{"n":-5}`, `{"n":-2}`), schema: required("n"),
		want: `decimal(args.n) >= decimal("-5") && decimal(args.n) <= decimal("-2")`, refused: []string{`{"n":0}`, `{"n":-6}`},
	},
	{
		name: "a constant boolean", calls: times(1, `{"dry":true}`), schema: required("dry"), want: `args.dry == true`, refused: []string{`{"dry":false}`, `{"dry":"true"}`},
	},
	{
		name: "a boolean", calls: times(1, `{"dry":true}`, `{"dry":false}`), schema: required("dry"), want: `args.dry in [true, false]`, refused: []string{`{"dry":1}`},
	},
	{
		name: "null", calls: times(1, `{"x":null}`), schema: required("x"), want: `args.x == null`, refused: []string{`{"x":1}`},
	},
	{
		name: "different types", calls: times(1, `{"x":1}`, `{"x":"1"}`), schema: required("x"), note: "different types",
	},
	{
		name: "an object", calls: times(1, `{"x":{}}`), schema: required("x"), note: "it is an object",
	},
	{
		name: "a list of paths", calls: times(1, `{"paths":["/srv/w/a","/srv/w/b"]}`), schema: required("paths"),
		want:    `args.paths[0] != "" && args.paths.all(x, path.within(x, "/srv/w"))`,
		refused: []string{`{"paths":["/srv/w/a","/etc"]}`, `{"paths":{"/srv/w/a":"/etc"}}`, `{"paths":[]}`, `{"paths":"/srv/w/a"}`},
	},
	{
		name: "lists of texts, also empty", calls: append(times(3, `{"to":["a","b"]}`), times(1, `{"to":[]}`)...), schema: required("to"),
		want:   `(args.to == [] || args.to[0] != "") && args.to.all(x, x in ["a", "b"])`,
		passes: []string{`{"to":["b"]}`}, refused: []string{`{"to":["c"]}`, `{"to":{}}`},
	},
	{
		name: "an empty list", calls: times(1, `{"to":[]}`), schema: required("to"), want: `args.to == []`, refused: []string{`{"to":["a"]}`, `{"to":{}}`},
	},
	{
		name: "a list of objects", calls: times(1, `{"to":[{}]}`), schema: required("to"), note: "a list that contains values other than texts",
	},
	{
		name: "optional, and sometimes absent", calls: times(3, `{}`, `{"n":5}`), schema: engine.Schema{Arguments: map[string]engine.Argument{"n": {}}, Closed: true},
		want: `(!has(args.n) || decimal(args.n) >= decimal("0") && decimal(args.n) <= decimal("5"))`, note: "(calls: 3, without it: 3)", refused: []string{`{"n":6}`},
	},
	{
		name: "optional, and never absent", calls: times(1, `{"n":5}`), schema: engine.Schema{Arguments: map[string]engine.Argument{"n": {}}, Closed: true},
		want: `has(args.n) && decimal(args.n) >= decimal("0") && decimal(args.n) <= decimal("5")`, refused: []string{`{}`},
	},
	{
		name: "a name that is not an identifier", calls: times(1, `{"in":true,"dry-run":true}`), schema: required("in", "dry-run"),
		want: `args["dry-run"] == true`, refused: []string{`{"in":true,"dry-run":false}`, `{"in":true,"dry_run":true}`},
	},
	{
		name: "an absent name that is not an identifier", calls: times(1, `{"dry-run":true}`, `{}`),
		want: `(!("dry-run" in args) || args["dry-run"] == true)`, refused: []string{`{"dry-run":false}`},
	},
	{
		name: "an argument that the schema does not have", calls: times(1, `{"y":true}`), schema: required("x"), note: "can't be evaluated for an observed call",
	},
	{
		name: "values that were replaced", schema: required("token", "n"), note: `"token": no bound: its value was replaced (calls: 1)`,
		calls: []propose.Call{{Arguments: `{"token":"x"}`}, {Arguments: `{"token":"a [redacted: secrets]"}`, Redacted: true}},
	},
	{
		name: "values that were replaced, at an unknown place", schema: required("x"), note: "it is not known which",
		calls: []propose.Call{{Arguments: `{"x":"x"}`, Redacted: true}},
	},
	{
		name: "arguments that were replaced as a whole", note: "replaced as a whole", calls: []propose.Call{{Arguments: `"[redacted: all arguments, because x]"`, Redacted: true}},
	},
	{
		name: "not recorded", note: "the arguments of 1 of 3 calls were not recorded", calls: append(times(2, `{"x":true}`), propose.Call{NotRecorded: true}),
	},
	{
		name: "no arguments", calls: times(1, ``, `{}`), want: "size(args) == 0", refused: []string{`{"x":1}`},
	},
	{
		name: "too large for conditions", calls: times(1, `{"x":true,"y":"`+strings.Repeat("a", 300<<10)+`"}`), schema: required("x", "y"), note: "can't be evaluated for an observed call",
	},
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tt := range boundTests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bounds := propose.Bounds(tt.calls, tt.schema, home)
			all, notes, found := propose.Join(bounds), "", tt.want == ""
			for _, b := range bounds {
				notes += b.Note + "\n"
				found = found || b.Condition == tt.want
			}
			if !found || !strings.Contains(notes, tt.note) || (tt.want == "") == propose.Bounded(bounds) {
				t.Fatalf("the condition is %s; the notes are:\n%s", all, notes)
			}
			if all == "" {
				return
			}
			for _, c := range tt.calls {
				if !holds(t, all, c.Arguments) {
					t.Errorf("%s refuses the observed %s", all, c.Arguments)
				}
			}
			for _, other := range tt.passes {
				if !holds(t, all, other) {
					t.Errorf("%s refuses %s", all, other)
				}
			}
			if tt.want == "" {
				return
			}
			for _, other := range append(tt.refused, `{"extra":1}`, strings.Replace(tt.calls[len(tt.calls)-1].Arguments, "{", `{"extra":1,`, 1)) {
				if other != "" && holds(t, all, other) {
					t.Errorf("%s permits %s", all, other)
				}
			}
		})
	}
}

// If the combined condition would exceed the maximum length, its longest parts are dropped.
func TestBounds_FitACondition(t *testing.T) {
	t.Parallel()
	var members []string
	for i := range 30 {
		members = append(members, fmt.Sprintf(`"k%d":"%s"`, i, strings.Repeat("v", 150)))
	}
	calls := times(3, "{"+strings.Join(members, ",")+"}")
	bounds := propose.Bounds(calls, engine.Schema{}, "")
	all := propose.Join(bounds)
	if len(all) > condition.MaxBytes || propose.Bounded(bounds) || !holds(t, all, calls[0].Arguments) {
		t.Errorf("the condition has %d bytes: %s", len(all), all)
	}
}

// A call has too many arguments. Bounds returns a single entry, which says that there are no bounds.
func TestBounds_ManyArguments(t *testing.T) {
	t.Parallel()
	var members []string
	for i := range 65 {
		members = append(members, fmt.Sprintf(`"k%d":1`, i))
	}
	if bounds := propose.Bounds(times(1, "{"+strings.Join(members, ",")+"}"), engine.Schema{}, ""); len(bounds) != 1 || propose.Bounded(bounds) {
		t.Errorf("the bounds are %v", bounds)
	}
}
