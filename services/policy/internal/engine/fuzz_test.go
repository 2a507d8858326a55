package engine_test

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// FuzzDecide compares the decision that a rule with a condition leads to with the decisions for the constant conditions
// `true` and `false`. If the condition is true for the call, the decision must be the same as with `true`. If it is
// false, the decision must be the same as with `false`.
//
// If the condition can't be evaluated, the call may be allowed only if the decisions with `true` and with `false` both
// allow it. The call may require approval only if at least one of these decisions requires approval. Unless the call is
// denied, it must have the limits of both decisions.
func FuzzDecide(f *testing.F) {
	for i, when := range []string{
		`args.n == 1`, `args.n < 3 && args.?ok.orValue(false) == true`, `decimal(args.n) > decimal("100")`, `path.within(args.path, "/srv")`,
		`caller.agent == "ci"`, `"ops" in caller.groups`, `tool.risk == "low"`, `now.getHours() < 6`, `args.l.all(x, x == args.n)`, `!(args.n != "eu")`,
	} {
		for j, params := range []string{"", `{"arguments":{"n":1,"path":"/srv/a","l":[1,2]}}`, `{"arguments":{"n":"1"}}`, `{"arguments":{"n":1,"N":2}}`, `{`} {
			f.Add(when, params, uint16(i*1237+j*7919))
		}
	}
	f.Fuzz(func(t *testing.T, when, params string, form uint16) {
		c, err := condition.Compile(when)
		if err != nil {
			return
		}
		call := engine.Call{
			Server: "s", Tool: "t", Params: params, Now: time.Unix(1e9, 0), Subject: engine.Subject{Caller: engine.Principal{Tenant: "default", Name: "ana", Groups: []string{"ops"}}},
			Facts: engine.Facts{Status: engine.Callable, Category: "write", Risk: "medium", Sure: true},
		}
		own, compiled := decideWith(t, when, form, call)
		held, _ := decideWith(t, "true", form, call)
		missed, _ := decideWith(t, "false", form, call)
		if !compiled { // a rule can't hide depending on arguments, or the rule has no effect
			return
		}
		in := condition.Input{
			Server: "s", Tool: "t", Method: engine.MethodToolsCall, Now: call.Now,
			Caller: condition.Caller{Subject: "ana", Tenant: "default", Groups: []string{"ops"}}, Class: condition.Class{Category: "write", Risk: "medium"},
		}
		in.Args, in.ArgsError = condition.ParseArguments(params)
		result, _ := c.Evaluate(&in)
		want := held
		switch result {
		case condition.True:
		case condition.False:
			want = missed
		default:
			allowed := own.Effect == engine.Allow && (held.Effect != engine.Allow || missed.Effect != engine.Allow)
			asked := own.Effect == engine.RequireApproval && held.Effect != engine.RequireApproval && missed.Effect != engine.RequireApproval
			if allowed || asked || own.Effect != engine.Deny && (!hasLimits(&own, &held) || !hasLimits(&own, &missed)) {
				t.Fatalf("%s fails for %s: %+v; true: %+v; false: %+v", when, params, own, held, missed)
			}
			return
		}
		if own.Effect != want.Effect || own.Code != want.Code || own.Message != want.Message || own.Rule != want.Rule || len(own.Limits) != len(want.Limits) {
			t.Fatalf("%s is %v for %s: %+v; want %+v", when, result, params, own, want)
		}
	})
}

// decideWith makes a decision on a call with rules whose condition is the parameter when. The parameter form is a
// number that selects the rules. decideWith returns false if the rules do not compile.
func decideWith(t *testing.T, when string, form uint16, call engine.Call) (engine.Decision, bool) {
	t.Helper()
	pick := func(n uint16) uint16 { defer func() { form /= n }(); return form % n }
	limit := []engine.RateLimit{{Max: 5, Window: time.Minute, Per: []engine.Dimension{engine.PerPrincipal}}}
	d := engine.Document{Name: "d", Default: engine.Default(pick(4))}
	rule := engine.Rule{Name: "r", Match: engine.Match{Tool: []string{"t"}}, When: when, Action: engine.Action(pick(5))}
	if pick(2) == 1 || rule.Action == engine.ActionNone {
		rule.Limits = limit
	}
	d.Rules = append(d.Rules, rule)
	if other := engine.Action(pick(6)); other <= engine.ActionHide {
		otherwise := engine.Rule{Name: "r", Match: rule.Match, When: when, Otherwise: true, Action: other, Reason: "the other half"}
		if pick(2) == 1 {
			otherwise.Limits = limit
		}
		d.Rules = append(d.Rules, otherwise)
	}
	if always := engine.Action(pick(4)); always != engine.ActionNone {
		d.Rules = append(d.Rules, engine.Rule{Name: "always", Match: engine.Match{Tool: []string{"*"}}, Action: always, Reason: "always"})
	}
	set, err := engine.Compile([]engine.Document{d}, options)
	if err != nil {
		return engine.Decision{}, false
	}
	return set.Decide(call), true
}

// hasLimits reports whether the decision d has all limits of the other decision.
func hasLimits(d, other *engine.Decision) bool {
	for i := range other.Limits {
		found := false
		for j := range d.Limits {
			found = found || d.Limits[j].Bucket == other.Limits[i].Bucket
		}
		if !found {
			return false
		}
	}
	return true
}
