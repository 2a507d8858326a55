package engine_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// TestCheckOverlaps_RulesWithoutEffectCanBeRemoved removes a rule that has no effect according to CheckOverlaps, and
// checks that the decisions stay the same.
func TestCheckOverlaps_RulesWithoutEffectCanBeRemoved(t *testing.T) {
	t.Parallel()
	removed := 0
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		if rapid.Bool().Draw(t, "deny all") {
			documents = append(documents, engine.Document{Name: "all", Rules: []engine.Rule{{Name: "all", Action: engine.ActionDeny}}})
		}
		before, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range engine.CheckOverlaps(documents) {
			if !strings.HasPrefix(w.Message, "has no effect") {
				continue
			}
			removed++
			fewer := slices.Clone(documents)
			fewer[w.Document].Rules = slices.Delete(slices.Clone(documents[w.Document].Rules), w.Rule, w.Rule+1)
			after, err := engine.Compile(fewer, options)
			if err != nil {
				t.Fatal(err)
			}
			with, without := before.Decide(call), after.Decide(call)
			if with.Effect != without.Effect || with.Code != without.Code || with.Rule != without.Rule {
				t.Fatalf("%+v: without rule %d of document %d, the decision is %+v, and with it %+v", w, w.Rule, w.Document, without, with)
			}
		}
	})
	if removed == 0 {
		t.Error("no rule without effect was drawn")
	}
}

func TestCheckOverlaps_IgnoresRulesAboutOtherCalls(t *testing.T) {
	t.Parallel()
	deny := func(name string, m engine.Match) engine.Rule {
		return engine.Rule{Name: name, Match: m, Action: engine.ActionDeny}
	}
	found := engine.CheckOverlaps([]engine.Document{
		{Name: "a", Server: "s*", Rules: []engine.Rule{
			{Tool: "read", Action: engine.ActionAllow},
			{Tool: "pay", Action: engine.ActionAllow, Limits: []engine.RateLimit{{Max: 1, Window: 1e9, Per: []engine.Dimension{engine.PerPrincipal}}}},
			{Name: "ask", Match: engine.Match{Tool: []string{"pay"}}, Action: engine.ActionRequireApproval},
			{Tool: "when", When: "args.a == 1", Action: engine.ActionAllow},
			{Tool: "when", When: "args.a == 1", Otherwise: true, Action: engine.ActionDeny},
		}},
		{Name: "b", Server: "t", Rules: []engine.Rule{deny("other-server", engine.Match{}), {Tool: "when", Action: engine.ActionAllow}}},
		{Name: "c", Rules: []engine.Rule{
			deny("contractors", engine.Match{Groups: []string{"contractors"}}), deny("named", engine.Match{Prompt: []string{"*"}}),
			deny("risky", engine.Match{Risk: []string{"critical"}}), deny("elsewhere", engine.Match{Server: []string{"t"}, Tool: []string{"*"}}),
		}},
	})
	for _, w := range found {
		if w.Document != 1 { // the server t
			t.Errorf("%+v", w)
		}
	}
}
