package strictyaml_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

type limit struct {
	Max    int           `yaml:"max"`
	Window time.Duration `yaml:"window"`
}

// ExplainKey implements [strictyaml.Explainer].
func (*limit) ExplainKey(key string) (message, suggestion string, ok bool) {
	return `"` + key + `" is for later`, "remove it", key == "burst"
}

type color string

// UnmarshalText implements [encoding.TextUnmarshaler].
func (c *color) UnmarshalText(text []byte) error {
	known := []string{"red", "green"}
	if slices.Contains(known, string(text)) {
		*c = color(text)
		return nil
	}
	return strictyaml.Problem{Message: "no such color", Suggestion: strictyaml.Suggest(string(text), known)}
}

type window int

// UnmarshalYAML implements [yaml.Unmarshaler].
func (w *window) UnmarshalYAML(n *yaml.Node) error {
	if n.Value == "short" {
		*w = 1
		return nil
	}
	return errors.New("not a window")
}

type base struct {
	ID string `yaml:"id"`
}

type target struct {
	base      `yaml:",inline"`
	Name      string                           `yaml:"name"`
	On        bool                             `yaml:"on"`
	Small     int8                             `yaml:"small"`
	Size      uint16                           `yaml:"size"`
	Big       uint64                           `yaml:"big"`
	Share     float64                          `yaml:"share"`
	Wait      time.Duration                    `yaml:"wait"`
	RateLimit *limit                           `yaml:"rate_limit"`
	Limits    map[string]limit                 `yaml:"limits"`
	Hosts     []string                         `yaml:"hosts"`
	Globs     strictyaml.OneOrMany[string]     `yaml:"globs"`
	Many      strictyaml.OneOrMany[limit]      `yaml:"many"`
	Color     color                            `yaml:"color"`
	Window    window                           `yaml:"window"`
	Anything  any                              `yaml:"anything"`
	Raw       yaml.Node                        `yaml:"raw"`
	Deep      map[string]map[string][][]string `yaml:"deep"`
	Untagged  int
	Hidden    int `yaml:"-"`
	private   int
}

func decode(file string, text []byte, into any) error {
	source, err := strictyaml.Parse(file, text)
	if err != nil {
		return err
	}
	return source.Decode(into)
}

func TestDecode_ReadsEveryKindOfValue(t *testing.T) {
	t.Parallel()
	const text = `
id: x
name: "12"
on: true
small: -128
size: 65535
big: 18446744073709551615
share: 0.25
wait: 1m30s
rate_limit: {max: 10, window: 60s}
limits:
  a.b: {max: 1}
hosts: [one, two]
globs: one
many: {max: 3}
color: green
window: short
anything: {list: [1, 2.5, true, null, text], map: {}}
raw: [1]
deep: {a: {b: [[c], []]}}
untagged: 7
`
	var got target
	if err := decode("x.yaml", []byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if n := got.Raw; n.Kind != yaml.SequenceNode || n.Line != 19 {
		t.Errorf("raw node is %v at line %d, want a sequence at 19", n.Kind, n.Line)
	}
	got.Raw = yaml.Node{}
	want := target{
		base: base{ID: "x"}, Name: "12", On: true, Small: -128, Size: 65535, Big: 1<<64 - 1, Share: 0.25,
		Wait: 90 * time.Second, RateLimit: &limit{Max: 10, Window: time.Minute},
		Limits: map[string]limit{"a.b": {Max: 1}}, Hosts: []string{"one", "two"}, Globs: []string{"one"},
		Many: []limit{{Max: 3}}, Color: "green", Window: 1,
		Anything: map[string]any{"list": []any{int64(1), 2.5, true, nil, "text"}, "map": map[string]any{}},
		Deep:     map[string]map[string][][]string{"a": {"b": {{"c"}, {}}}}, Untagged: 7,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{}, base{})); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestDecode_KeepsUnnamedValues(t *testing.T) {
	t.Parallel()
	got := target{
		Name: "kept", Size: 3, Hosts: []string{"gone"}, RateLimit: &limit{Max: 1, Window: time.Second},
		Limits: map[string]limit{"kept": {Max: 1}, "replaced": {Max: 2, Window: 1}},
	}
	text := "size: 4\nhosts: [new]\nrate_limit: {max: 2}\nlimits: {replaced: {max: 5}}\n"
	if err := decode("", []byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := target{
		Name: "kept", Size: 4, Hosts: []string{"new"}, RateLimit: &limit{Max: 2, Window: time.Second},
		Limits: map[string]limit{"kept": {Max: 1}, "replaced": {Max: 5}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{}, base{})); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestDecode_EmptyDocumentChangesNothing(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "---\n", "null", "~\n", "\ufeff"} {
		got := target{Name: "kept"}
		if err := decode("", []byte(text), &got); err != nil || got.Name != "kept" {
			t.Errorf("Decode(%q) = %v and name %q, want no error and the name kept", text, err, got.Name)
		}
	}
}

func TestDecode_ReportsProblems(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       string
	}{
		{"a key that is nearly known", "rate_limt: {max: 1}",
			`f.yaml:1:1: unknown key "rate_limt"; did you mean "rate_limit"?`},
		{"a key with dashes and capitals", "limits: {a: {MAX: 1}}\nrate-limit: {}",
			"f.yaml:1:14: limits.a: unknown key \"MAX\"; did you mean \"max\"?\n" +
				`f.yaml:2:1: unknown key "rate-limit"; did you mean "rate_limit"?`},
		{"a key that is like no other", "rate_limit: {algorithm: gcra}",
			`f.yaml:1:14: rate_limit: unknown key "algorithm"; known are: max, window`},
		{"a key that the type explains", "rate_limit: {burst: 3}",
			`f.yaml:1:14: rate_limit: "burst" is for later; remove it`},
		{"a key twice", "name: a\nname: b",
			`f.yaml:2:1: the key "name" occurs twice; keep one of them`},
		{"a key twice, once in quotes", "limits: {x: {}, \"\\x78\": {}}",
			`f.yaml:1:17: limits: the key "x" occurs twice; keep one of them`},
		{"a key twice where anything may stand", "anything: [{a: 1, a: 1}]",
			`f.yaml:1:19: anything[0]: the key "a" occurs twice; keep one of them`},
		{"text for a number", "rate_limit:\n  max: ten",
			`f.yaml:2:8: rate_limit.max: wanted a whole number, found text "ten"`},
		{"a number in quotes", "small: '12'",
			`f.yaml:1:8: small: wanted a whole number from -128 to 127, found text "12"; remove the quotes`},
		{"a number too large", "small: 128\nsize: -1\nbig: 18446744073709551616\n",
			"f.yaml:1:8: small: wanted a whole number from -128 to 127, found a number \"128\"\n" +
				"f.yaml:2:7: size: wanted a whole number from 0 to 65535, found a number \"-1\"\n" +
				`f.yaml:3:6: big: wanted a whole number that is not negative, found a number "18446744073709551616"`},
		{"a number of another base", "untagged: 0777",
			`f.yaml:1:11: untagged: wanted a whole number, found a number "0777"; write it in decimal, without leading zeros or underscores`},
		{"a fraction for a whole number", "untagged: 1.0",
			`f.yaml:1:11: untagged: wanted a whole number, found a number "1.0"`},
		{"no number at all", "share: .nan",
			`f.yaml:1:8: share: wanted a number, found a number ".nan"`},
		{"a truth value of YAML 1.1", "on: yes",
			`f.yaml:1:5: on: wanted true or false, found text "yes"; write true`},
		{"a mapping for a truth value", "on: {a: 1}",
			`f.yaml:1:1: on: wanted true or false, found a mapping`},
		{"a number for text, whose value may be a secret", "name: 123456",
			`f.yaml:1:7: name: wanted text, found a number; put it in quotes`},
		{"a date for text", "name: 2026-07-28",
			`f.yaml:1:7: name: wanted text, found a date; put it in quotes`},
		{"a list for text", "name: [a]",
			`f.yaml:1:1: name: wanted text, found a list`},
		{"text for a mapping, which may be a secret", "rate_limit: secret",
			`f.yaml:1:13: rate_limit: wanted a mapping, found text`},
		{"text for a map", "limits: x",
			`f.yaml:1:9: limits: wanted a mapping, found text; write each entry as KEY: VALUE`},
		{"one item for a list", "hosts: a",
			`f.yaml:1:8: hosts: wanted a list, found text; put it in [ ]`},
		{"an item of a list", "hosts: [a, 2]",
			`f.yaml:1:12: hosts[1]: wanted text, found a number; put it in quotes`},
		{"an item written alone", "globs: 3\nmany: {max: x}",
			"f.yaml:1:8: globs: wanted text, found a number; put it in quotes\n" +
				`f.yaml:2:13: many.max: wanted a whole number, found text "x"`},
		{"a duration without a unit", "wait: 30",
			`f.yaml:1:7: wait: wanted a duration such as "30s", found a number "30"; write the unit too, for example 30s`},
		{"a duration with an unknown unit", "wait: 30 sec",
			`f.yaml:1:7: wait: wanted a duration such as "30s", found text "30 sec"; units are ms, s, m and h`},
		{"a word that the type refuses", "color: gren",
			`f.yaml:1:8: color: no such color; did you mean "green"?`},
		{"a node that the type refuses", "window: long",
			`f.yaml:1:9: window: not a window`},
		{"a key without a value", "rate_limit:\nname: ~",
			"f.yaml:1:1: rate_limit: has no value; give it a value, or remove the key\n" +
				`f.yaml:2:7: name: has no value; give it a value, or remove the key`},
		{"a name in a flow mapping without a value", "rate_limit: {max}",
			`f.yaml:1:14: rate_limit.max: has no value; give it a value, or remove the key`},
		{"an item without a value", "hosts: [a, null]",
			`f.yaml:1:12: hosts[1]: has no value; give it a value, or remove the key`},
		{"an anchor and an alias", "name: &a x\nid: *a",
			"f.yaml:1:7: name: anchors and aliases are not supported; write the value out in each place\n" +
				`f.yaml:2:5: id: anchors and aliases are not supported; write the value out in each place`},
		{"an anchor where anything may stand", "anything: [&a [x], *a]",
			"f.yaml:1:12: anything[0]: anchors and aliases are not supported; write the value out in each place\n" +
				`f.yaml:1:20: anything[1]: anchors and aliases are not supported; write the value out in each place`},
		{"an unknown alias, whose name may be a secret", "name: *hunter2",
			`f.yaml:1:7: anchors and aliases are not supported; put a value that begins with * in quotes`},
		{"a merge key", "rate_limit: {<<: {max: 1}}",
			`f.yaml:1:14: rate_limit: the merge key "<<" is not supported; write the merged keys out`},
		{"a tag", "name: !!str 12\nid: !secret x\nsmall: ! 1",
			"f.yaml:1:7: name: tags are not supported; quote the value if it is text\n" +
				"f.yaml:2:5: id: tags are not supported; quote the value if it is text\n" +
				`f.yaml:3:8: small: tags are not supported; quote the value if it is text`},
		{"keys that are not text", "limits:\n  1: {}\n  [a]: {}\n  &x b: {}\n  !!str c: {}",
			"f.yaml:2:3: limits: a key is not text; put it in quotes\n" +
				"f.yaml:3:3: limits: a key is a mapping or a list; keys are text\n" +
				"f.yaml:4:3: limits: anchors and aliases are not supported; write the key out\n" +
				`f.yaml:5:3: limits: tags are not supported; quote the key if it is text`},
		{"a list at the root", "- a",
			`f.yaml:1:1: wanted a mapping, found a list`},
		{"two documents", "name: a\n---\nname: b",
			`f.yaml:2:1: a second document starts here; put it into a separate file`},
		{"a second document that does not parse", "name: a\n---\n[",
			`f.yaml:4:1: is not YAML: while parsing a flow node, did not find expected node content`},
		{"what is not YAML", "name: [a,",
			`f.yaml:2:1: is not YAML: while parsing a flow node, did not find expected node content`},
		{"a tab for indentation", "rate_limit:\n\tmax: 1",
			`f.yaml:2:1: is not YAML: while scanning for the next token, found character that cannot start any token; indent with spaces, not with tabs`},
		{"columns in characters, not bytes", "name: é\nanything: {ü: 1, ü: 2}",
			`f.yaml:2:18: anything: the key "ü" occurs twice; keep one of them`},
		{"invalid UTF-8", "name: a\nid: \xff",
			`f.yaml:2:5: is not valid UTF-8; save the file as UTF-8`},
		{"UTF-16", "\xff\xfea\x00",
			`f.yaml:1:1: is not valid UTF-8; save the file as UTF-8`},
		{"a control character", "name: \"a\x1b[2J\"",
			`f.yaml:1:9: contains the control character U+001B; remove it, or escape it in double quotes`},
		{"a line break on which readers disagree", "name: a\u0085id: b",
			`f.yaml:1:8: contains the control character U+0085; remove it, or escape it in double quotes`},
		{"a separator of lines", "name: a\u2028id: b",
			`f.yaml:1:8: contains the line break U+2028; remove it, or escape it in double quotes`},
		{"a path that would be misread", `limits: {"a.b": {max: x}, "c\nd": {max: x}}`,
			"f.yaml:1:23: limits[\"a.b\"].max: wanted a whole number, found text \"x\"\n" +
				`f.yaml:1:41: limits["c\nd"].max: wanted a whole number, found text "x"`},
		{"too deep", "anything: " + strings.Repeat("[", 70) + strings.Repeat("]", 70),
			`f.yaml:1:75: is not YAML: while increasing flow level, exceeded max depth of 64`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got target
			err := decode("f.yaml", []byte(tt.text), &got)
			if err == nil {
				t.Fatalf("Decode(%q) succeeded, want\n%s", tt.text, tt.want)
			}
			if diff := cmp.Diff(strings.Split(tt.want, "\n"), strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("Decode(%q) (-want +got):\n%s", tt.text, diff)
			}
		})
	}
}

func TestDecode_BoundsInputAndProblems(t *testing.T) {
	t.Parallel()
	var got target
	err := decode("f.yaml", make([]byte, strictyaml.MaxBytes+1), &got)
	if want := "f.yaml: larger than 4194304 bytes"; err == nil || err.Error() != want {
		t.Errorf("an oversized document: %v, want %s", err, want)
	}
	var many strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&many, "%s%d: 1\n", strings.Repeat("k", 500), i)
	}
	err = decode("f.yaml", []byte(many.String()), &got)
	problems, ok := errors.AsType[strictyaml.Errors](err)
	if !ok || len(problems) != 100 {
		t.Fatalf("%d problems of type %T, want 100", len(problems), err)
	}
	if len(problems[0].Message) > 100 {
		t.Errorf("a message of %d bytes repeats a long key", len(problems[0].Message))
	}
}

func TestDecode_ReadsJSON(t *testing.T) {
	t.Parallel()
	text := "{\n\t\"name\": \"a\\/b\\u00e9\",\n\t\"rate_limit\": {\"max\": 10, \"window\": \"60s\"},\n\t\"on\": true,\n\t\"hosts\": []\n}\n"
	var got target
	if err := decode("f.json", []byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := target{Name: "a/bé", RateLimit: &limit{Max: 10, Window: time.Minute}, On: true, Hosts: []string{}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{}, base{})); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestProblem_HasPositionOfPath(t *testing.T) {
	t.Parallel()
	const text = `name: x
limits:
  a.b:
    max: 1
  c: {max: 2,
      window: 3s}
hosts: [one,
  two]
`
	source, err := strictyaml.Parse("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	limits := strictyaml.Key("", "limits")
	tests := []struct{ path, want string }{
		{"", "f.yaml:1:1: wrong; mend it"},
		{"name", "f.yaml:1:7: name: wrong; mend it"},
		{limits, "f.yaml:2:1: limits: wrong; mend it"},
		{strictyaml.Key(limits, "a.b"), `f.yaml:3:3: limits["a.b"]: wrong; mend it`},
		{strictyaml.Key(strictyaml.Key(limits, "a.b"), "max"), `f.yaml:4:10: limits["a.b"].max: wrong; mend it`},
		{"limits.c.window", "f.yaml:6:15: limits.c.window: wrong; mend it"},
		{"limits.c.missing.deeper", "f.yaml:5:3: limits.c.missing.deeper: wrong; mend it"},
		{strictyaml.Index("hosts", 1), "f.yaml:8:3: hosts[1]: wrong; mend it"},
		{strictyaml.Index("hosts", 2), "f.yaml:7:1: hosts[2]: wrong; mend it"},
		{"nothing", "f.yaml:1:1: nothing: wrong; mend it"},
		{"limits.c[0].max", "f.yaml:5:12: limits.c.max: wrong; mend it"},
		{"limits.c[0].lost", "f.yaml:5:3: limits.c.lost: wrong; mend it"},
		{"hosts[0].lost", "f.yaml:7:9: hosts[0].lost: wrong; mend it"},
		{"name[0]", "f.yaml:1:7: name: wrong; mend it"},
	}
	for _, tt := range tests {
		if got := source.Problem(tt.path, "wrong", "mend it").Error(); got != tt.want {
			t.Errorf("Problem(%q) = %s, want %s", tt.path, got, tt.want)
		}
	}
}

func TestDecode_PanicsOnUnsupportedTypes(t *testing.T) {
	t.Parallel()
	targets := map[string]any{
		"a value":             target{},
		"a nil pointer":       (*target)(nil),
		"a channel":           &struct{ A chan int }{},
		"keys of numbers":     &struct{ A map[int]string }{},
		"a complex number":    &struct{ A complex128 }{},
		"an interface of own": &struct{ A fmt.Stringer }{},
	}
	for name, into := range targets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_ = decode("", []byte("a: {x: y}"), into)
		})
	}
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	known := []string{"allow", "deny", "hide", "require_approval"}
	tests := []struct{ word, want string }{
		{"alow", `did you mean "allow"?`},
		{"Deny", `did you mean "deny"?`},
		{"dney", `did you mean "deny"?`},
		{"require-aproval", `did you mean "require_approval"?`},
		{"forbid", "known are: allow, deny, hide, require_approval"},
		{"", "known are: allow, deny, hide, require_approval"},
	}
	for _, tt := range tests {
		if got := strictyaml.Suggest(tt.word, known); got != tt.want {
			t.Errorf("Suggest(%q) = %s, want %s", tt.word, got, tt.want)
		}
	}
	if got := strictyaml.Suggest("x", nil); got != "" {
		t.Errorf("Suggest without known words = %q", got)
	}
}

func TestErr_IsNilWithoutProblems(t *testing.T) {
	t.Parallel()
	if err := (strictyaml.Errors{}).Err(); err != nil {
		t.Errorf("Err() = %v", err)
	}
}

// This field is unexported, so the decoder must ignore it.
var _ = target{}.private

func BenchmarkDecode(b *testing.B) {
	var text strings.Builder
	text.WriteString("limits:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  tool_%d: {max: %d, window: 60s}\n", i, i)
	}
	for b.Loop() {
		var got target
		if err := decode("", []byte(text.String()), &got); err != nil {
			b.Fatal(err)
		}
	}
}
