package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestDecide_FindsEveryMatchingRule checks that the index finds the same rules as a search that tries all patterns. The
// set contains a rule for each pair of patterns, so that every part of the index is used.
func TestDecide_FindsEveryMatchingRule(t *testing.T) {
	t.Parallel()
	servers := [][]string{nil, {"s"}, {"s", "t"}, {"s*"}, {"t", "?"}, {"*"}}
	tools := [][]string{nil, {"t"}, {"t*"}, {"tu"}, {"tu*"}, {"*"}, {"*u"}, {"t?"}, {"t*", "*u", "tu"}, {"x", "t"}, {"tuv*", "t"}}
	homes := []string{"", "s", "t", "s*", "?"}
	var documents []engine.Document
	for i, home := range homes {
		d := engine.Document{Name: fmt.Sprintf("d%d", i), Server: home, Default: engine.DefaultAllow}
		for j, server := range servers {
			for k, tool := range tools {
				d.Rules = append(d.Rules, engine.Rule{
					Name: fmt.Sprintf("r%d-%d", j, k), Match: engine.Match{Server: server, Tool: tool}, Action: engine.ActionAllow,
				})
			}
		}
		documents = append(documents, d)
	}
	for _, server := range []string{"s", "t", "su", "z"} {
		for _, tool := range []string{"t", "tu", "tuv", "u", "x", "tx"} {
			call := engine.Call{Facts: callable, Server: server, Tool: tool, Subject: person("x")}
			for _, d := range documents {
				for _, r := range d.Rules {
					// The other rules match nothing, so this rule determines the decision if and only if it matches.
					r.Action = engine.ActionDeny
					set := compile(t, engine.Document{Name: "d", Server: d.Server, Default: engine.DefaultAllow, Rules: []engine.Rule{
						r, {Name: "z", Match: engine.Match{Tool: []string{"none", "t.*"}}, Action: engine.ActionHide},
					}}, engine.Document{Name: "e", Default: engine.DefaultAllow})
					matches := modelConcerns(d, r, call, call.Subject.Caller)
					if got := set.Decide(call); (got.Effect == engine.Deny) != matches {
						t.Fatalf("%s on server %q of a document for %q with %+v: %+v", tool, server, d.Server, r.Match, got)
					}
				}
			}
			all := compile(t, documents...)
			if diff := cmp.Diff(all.Explain(call).Decision, all.Decide(call)); diff != "" {
				t.Errorf("Explain and Decide differ:\n%s", diff)
			}
		}
	}
}

func TestDecide_AppliesALimitOnceWhenSeveralPatternsMatch(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Default: engine.DefaultAllow, Rules: []engine.Rule{{
		Name: "r", Match: engine.Match{Tool: []string{"tu", "t*", "*u", "tu*"}, Server: []string{"s", "*"}},
		Limits: []engine.RateLimit{{Max: 1, Window: time.Second, Per: []engine.Dimension{engine.PerTool}}},
	}}})
	if got := set.Decide(engine.Call{Facts: callable, Server: "s", Tool: "tu", Subject: person("x")}).Limits; len(got) != 1 {
		t.Errorf("%d limits, want 1: %+v", len(got), got)
	}
}
