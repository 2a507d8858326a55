package engine_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// rankOf returns a number that is greater for effects that permit more.
func rankOf(d engine.Decision) int {
	return slices.Index([]engine.Effect{engine.Deny, engine.RequireApproval, engine.Allow}, d.Effect)
}

// TestMayOpen_NamesARuleWhenAnyCallOpens compares the decisions of two sets of documents. If a call is less restricted
// by the second set, MayOpen must return a rule.
func TestMayOpen_NamesARuleWhenAnyCallOpens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		after := drawEdit(t, before)
		with := drawObserved(t, before)
		if rapid.Bool().Draw(t, "the change also observes") {
			drawObserved(t, after)
		}
		if len(engine.MayOpen(before, after)) > 0 {
			return
		}
		old, next, err := engine.CompilePair(before, after, with)
		if err != nil {
			t.Fatal(err)
		}
		for _, params := range slices.Sorted(maps.Keys(someParams)) {
			for _, check := range slices.Sorted(maps.Keys(someChecks)) {
				call.Params, call.CheckArguments = params, someChecks[check]
				if was, is := old.Decide(call), next.Decide(call); rankOf(is) > rankOf(was) {
					t.Fatalf("%s, %s: %v (%s) becomes %v (%s), and no rule may open calls", params, check, was.Effect, was.Rule, is.Effect, is.Rule)
				}
			}
		}
	})
}

// Changes to limits and approvers count if they may be the reason for refusing calls: because too many limits apply, or
// because no group may approve.
func TestMayOpen_TermsThatRefuseCallsCount(t *testing.T) {
	t.Parallel()
	approval := func(name, tool string, approvers ...string) engine.Rule {
		return engine.Rule{Name: name, Match: engine.Match{Tool: []string{tool}}, Action: engine.ActionRequireApproval, Approvers: approvers}
	}
	limited := func(n int) engine.Rule {
		r := engine.Rule{Name: "b", Match: engine.Match{Tool: []string{"*_secret"}}}
		for i := range n {
			r.Limits = append(r.Limits, engine.RateLimit{Max: 5, Window: time.Duration(i+1) * time.Second, Per: []engine.Dimension{engine.PerAgent}})
		}
		return r
	}
	allow := engine.Rule{Name: "a", Match: engine.Match{Tool: []string{"get_*"}}, Action: engine.ActionAllow, Limits: limited(10).Limits}
	for name, tt := range map[string]struct {
		old, next engine.Rule
		other     engine.Rule
		want      int
	}{
		"approvers in conflict": {approval("b", "*_secret", "security"), approval("b", "*_secret", "ops"), approval("a", "get_*", "ops"), 1},
		"more approvers":        {approval("b", "*_secret", "ops"), approval("b", "*_secret", "ops", "dev"), approval("a", "get_*", "ops"), 0},
		"fewer of many limits":  {limited(10), limited(2), allow, 1},
		"fewer of few limits":   {limited(2), limited(1), approval("a", "get_*"), 0},
	} {
		documents := func(r engine.Rule) []engine.Document {
			return []engine.Document{{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{tt.other, r}}}
		}
		if got := engine.MayOpen(documents(tt.old), documents(tt.next)); len(got) != tt.want {
			t.Errorf("%s: %v may open calls, want %d rules", name, got, tt.want)
		}
	}
}
