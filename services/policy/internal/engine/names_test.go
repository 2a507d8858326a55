package engine_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// Case T4. TestDecide_URISpellingsMatchByAction checks that a rule that allows calls matches only plain URIs, and that
// a rule that denies calls matches every spelling. A rule that requires approval must admit only the URIs that it would
// match if it allowed them.
func TestDecide_URISpellingsMatchByAction(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, uri    string
		allows, refuses bool
	}{
		{"file:///srv/*", "file:///srv/a.md", true, true},
		{"file:///srv/*", "file:///srv/a%20b.md", true, true},
		{"file:///srv/?.md", "file:///srv/a.md", true, true},
		{"file:///srv/?.md", "file:///srv/ab.md", false, false},
		{"file:///srv/*", "file:///etc/passwd", false, false},
		{"file:///srv/*", "file:///srvx/a", false, false},
		{"srv/*", "file:///srv/a.md", false, false}, // anchored
		{"file:///srv/*", "file:///srv/../etc/passwd", false, true},
		{"file:///etc/*", "file:///srv/../etc/passwd", false, true},
		{"file:///etc/*", "FILE:///etc/passwd", false, true},
		{"file:///etc/*", "file:///ETC/passwd", false, true},
		{"file:///etc/*", "file:///%65tc/passwd", false, true},
		{"file:///etc/*", "file://localhost/etc/passwd", false, true},
		{"file:///etc/*", "file:/etc/passwd", false, true},
		{"file:///etc/*", "file:////etc/passwd", false, true},
		{"file:///etc/*", "file:///etc", false, true},
		{"file:///etc/passwd", "file:///etc/passwd/", false, true},
		{"file:///etc/passwd", "file:///etc/passwd?x", false, true},
		{"file:///etc/passwd", "file:///etc/passwd#x", false, true},
		{"file:///etc/passwd", "file:///etc/passwd;x", false, true},
		{"file:///c:/secret.txt", "file:///C:/Secret.txt::$DATA", false, true},
		{"pg://db/*", "pg://me@db:5432/orders", false, true},
		{"Note://*", "", false, true},
		{"repo://Owner/*", "repo://owner/x", false, true},
		{"repo://Owner/*", "repo://Owner/x", true, true},
		{"*", "no URI at all", false, true},
		{"x:y", "", false, true},
	} {
		of := func(action engine.Action) engine.Decision {
			rules := []engine.Rule{{Name: "named", Match: engine.Match{URI: []string{strings.Replace(tt.pattern, "Note", "note", 1)}}, Action: action}}
			if action == engine.ActionRequireApproval {
				rules[0].Match.Method = []string{"resources/read"}
			} else if action != engine.ActionAllow {
				rules = append(rules, engine.Rule{Name: "all", Match: engine.Match{Method: []string{"resources/*"}}, Action: engine.ActionAllow})
			}
			return compile(t, engine.Document{Name: "d", Rules: rules}).Decide(engine.Call{Method: "resources/read", Server: "s", Tool: tt.uri, Subject: person("x"), Facts: callable})
		}
		if got := of(engine.ActionAllow); (got.Effect == engine.Allow) != tt.allows {
			t.Errorf("allow %s: %q is decided as %s", tt.pattern, tt.uri, got.Effect)
		}
		if got := of(engine.ActionRequireApproval); (got.Effect == engine.RequireApproval) != tt.allows || (got.Effect == engine.Deny) == tt.allows {
			t.Errorf("require approval for %s: %q is decided as %s", tt.pattern, tt.uri, got.Effect)
		}
		for _, action := range []engine.Action{engine.ActionDeny, engine.ActionHide} {
			if got := of(action); (got.Effect == engine.Deny) != tt.refuses {
				t.Errorf("%s %s: %q is decided as %s", action, tt.pattern, tt.uri, got.Effect)
			}
		}
	}
}

// TestExplain_ComparesNames checks that an explanation contains the names that the rules were compared with, and the
// reason why a URI is not plain.
func TestExplain_ComparesNames(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Rules: []engine.Rule{
		{Name: "a", Match: engine.Match{Prompt: []string{"p*", "q"}}, Action: engine.ActionAllow},
		{Name: "b", Match: engine.Match{URI: []string{"x:*"}}, Action: engine.ActionAllow},
	}})
	for _, tt := range []struct {
		call engine.Call
		want []engine.Check
	}{
		{engine.Call{Method: "prompts/get", Tool: "pp"}, []engine.Check{{Name: "prompt", Want: "p*, q", Got: "pp", Held: true}, {Name: "uri", Want: "x:*", Got: "pp"}}},
		{engine.Call{Method: "resources/read", Tool: "X:y"}, []engine.Check{{Name: "prompt", Want: "p*, q", Got: "X:y"}, {Name: "uri", Want: "x:*", Got: "X:y (which does not begin with a scheme in lower case and a colon)"}}},
		{engine.Call{Method: "completion/complete", Tool: "x:{y}", Ref: engine.RefResource}, []engine.Check{{Name: "prompt", Want: "p*, q", Got: "x:{y}"}, {Name: "uri", Want: "x:*", Got: "x:{y}", Held: true}}},
		{engine.Call{Method: "completion/complete"}, []engine.Check{{Name: "prompt", Want: "p*, q", Got: "unknown"}, {Name: "uri", Want: "x:*", Got: "unknown"}}},
	} {
		tt.call.Server, tt.call.Subject, tt.call.Facts = "s", person("x"), callable
		var got []engine.Check
		for _, r := range set.Explain(tt.call).Rules {
			for _, c := range r.Checks {
				if c.Name != "method" {
					got = append(got, c)
				}
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s of %q: %+v", tt.call.Method, tt.call.Tool, got)
		}
	}
}

// TestShowsEntry_Templates checks that a template is shown unless the text before its first expression proves that all
// URIs of the template are denied.
func TestShowsEntry_Templates(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Rules: []engine.Rule{
		{Name: "pub", Match: engine.Match{URI: []string{"file:///pub/*", "note://a/b"}}, Action: engine.ActionAllow},
		{Name: "not-these", Match: engine.Match{URI: []string{"file:///pub/secret/*", "file:///pub/x"}}, Action: engine.ActionDeny},
		{Name: "lists", Match: engine.Match{Method: []string{"resources/list"}}, Action: engine.ActionAllow},
		{Name: "asked", Match: engine.Match{URI: []string{"file:///held/*"}, Method: []string{"resources/read"}}, Action: engine.ActionRequireApproval},
	}})
	for template, want := range map[string]bool{
		"file:///{path}":              true,
		"file:///pub/{path}":          true,
		"file:///pub/a/{path}":        true,
		"file:///pub/secret/{path}":   false,
		"file:///PUB/secret/{path}":   false,
		"file:///pub/secret/{a}/{b}":  false,
		"file:///held/{path}":         true,
		"file:///helm/{path}":         false,
		"file:///pub/x{?q}":           true, // only one of the template's URIs is denied
		"file:///etc/{path}":          false,
		"note://{a}":                  true,
		"note://a/b{c}":               true,
		"note://a/c{d}":               false,
		"{+any}":                      true,
		"file:///pub/plain":           true, // a template without an expression is a URI
		"file:///pub/x":               false,
		"file:///pub/../etc/{passwd}": true, // no URI of the template can be read, so showing the template is harmless
	} {
		if got := set.ShowsEntry(person("x"), "s", engine.EntryTemplate, template, callable); got != want {
			t.Errorf("%s is shown: %t", template, got)
		}
		if set.ShowsEntry(person("x"), "s", engine.EntryTemplate, template, engine.Facts{Status: engine.Quarantined}) {
			t.Errorf("%s of a server that is stopped is shown", template)
		}
	}
}

// TestShowsEntry_AgreesWithDecide checks that entries are shown if calls with their names are not denied, and that they
// are not shown if these calls are denied regardless of their arguments. It also checks that the result is the same for
// all names if no rule distinguishes names.
func TestShowsEntry_AgreesWithDecide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		set, call := drawSet(t), drawCall(t)
		call.Ref, call.Facts = "", callable
		alike := set.Access(call.Subject, call.Server)
		for _, kind := range []struct {
			method string
			listed engine.EntryKind
			names  []string
			alike  bool
		}{
			{"prompts/get", engine.EntryPrompt, append(somePrompts, "other"), alike.PromptsAlike},
			{"resources/read", engine.EntryResource, append(slices.Sorted(maps.Keys(someURIs)), "c:d"), alike.ResourcesAlike},
			{"resources/subscribe", engine.EntryUpdate, append(slices.Sorted(maps.Keys(someURIs)), "c:d"), alike.ResourcesAlike},
		} {
			call.Method = kind.method
			could := set.CouldAllow(call.Subject, call.Server, kind.method, callable)
			seen := make(map[bool]bool)
			for _, name := range kind.names {
				call.Tool = name
				allowed := set.Decide(call).Effect != engine.Deny
				if shown := set.ShowsEntry(call.Subject, call.Server, kind.listed, name, callable); shown != allowed && (allowed || !set.EvaluatesConditions(call)) {
					t.Fatalf("%s of %q is allowed: %t, but shown: %t", kind.method, name, allowed, shown)
				}
				if allowed && !could {
					t.Fatalf("%s of %q is allowed, but CouldAllow is false", kind.method, name)
				}
				seen[allowed] = true
			}
			if kind.alike && len(seen) != 1 {
				t.Fatalf("%s: names are reported as alike, but have different decisions", kind.method)
			}
		}
		call.Method = "resources/read"
		for uri := range someURIs {
			call.Tool = uri
			for _, start := range []string{"", "a:", "a:x/", "a:x/y"} {
				shown := set.ShowsEntry(call.Subject, call.Server, engine.EntryTemplate, start+"{x}", callable)
				if strings.HasPrefix(uri, start) && set.Decide(call).Effect != engine.Deny && !shown {
					t.Fatalf("%s may be read, and the template %s{x} is not shown", uri, start)
				}
			}
		}
	})
}
