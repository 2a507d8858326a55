package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// Policy of the mesh may hide tools. The mesh also adds a tool of its own.
func TestComparison_DiffersOnlyInDefinitions(t *testing.T) {
	t.Parallel()
	const a, a2, b, c, wait = `{"name":"a","description":"1"}`, `{"description":"2","name":"a"}`, `{"name":"b"}`, `{"name":"c"}`, `{"name":"sluice_approval_wait"}`
	for _, tt := range []struct {
		name           string
		direct, behind []string
		same           int
		missing, more  []string
		reason         string
	}{
		{name: "the same", direct: []string{a, b}, behind: []string{b, a}, same: 2},
		{name: "the order of members", direct: []string{a}, behind: []string{`{"description":"1","name":"a"}`}, same: 1},
		{name: "the tool of the mesh", direct: []string{a}, behind: []string{a, wait}, same: 1},
		{name: "a hidden tool", direct: []string{a, b}, behind: []string{a}, same: 1, missing: []string{"b"}},
		{name: "another tool", direct: []string{a}, behind: []string{a, c}, same: 1, more: []string{"c"}},
		{name: "another definition", direct: []string{a, b}, behind: []string{a2, b}, reason: `the tool "a" has another definition`},
		{name: "nothing in common", direct: []string{a}, behind: []string{c, wait}, missing: []string{"a"}, more: []string{"c"}, reason: "no tool"},
		{name: "all tools are hidden", direct: []string{a}, missing: []string{"a"}, reason: "no tool"},
		{name: "no tools at all"},
		{name: "no list", direct: []string{"}"}, behind: []string{a}, reason: "can't be compared"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list := func(tools []string) jsontext.Value { return jsontext.Value("[" + strings.Join(tools, ",") + "]") }
			got := comparison{behind: listedServer{tools: list(tt.behind)}}
			got.difference(listedServer{tools: list(tt.direct)})
			if (got.reason == "") != (tt.reason == "") || !strings.Contains(got.reason, tt.reason) {
				t.Errorf("the reason is %q, want %q", got.reason, tt.reason)
			}
			if tt.reason != `the tool "a" has another definition` && (got.same != tt.same || !slices.Equal(got.missing, tt.missing) || !slices.Equal(got.more, tt.more)) {
				t.Errorf("%d in common, missing %q, more %q", got.same, got.missing, got.more)
			}
		})
	}
}

func TestCheckToken_RefusesWhatNoTokenHas(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"abc-DEF_123\n": "abc-DEF_123", " \tabc\r\n": "abc", "": "", "\n": "", "two words": "", "two\nlines": "", "\u00fc": "", "a\x00b": "",
	} {
		got, err := checkToken(given)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", given, got, err)
		}
	}
}
