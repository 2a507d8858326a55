package engine_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// moreParams contains params that are not in [someParams]: keys that are other spellings of the tested keys, and values
// of several types.
var moreParams = []string{`{"arguments":{"N":1}}`, `{"arguments":{"n":1,"OK":true}}`, `{"arguments":{"n":9,"ok":false}}`, `{"arguments":{"n":[1],"ok":1}}`, `{"arguments":{}}`, `{"arguments":7}`}

// TestReplay_KnownDecisionIsTheSameForAllArguments draws a recorded call. The arguments are not known. The groups, the
// classification and the kind of a completion request may also be unknown. If Replay knows the decision, Decide must
// return the same effect for all values. No decision may be more permissive than the most permissive effect that Replay
// returns.
func TestReplay_KnownDecisionIsTheSameForAllArguments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		set, err := engine.Compile(documents, drawObserved(t, documents))
		if err != nil {
			t.Fatal(err)
		}
		unknown := engine.Unknown(0)
		if rapid.Bool().Draw(t, "the groups are unknown") {
			unknown |= engine.UnknownGroups
		}
		if rapid.Bool().Draw(t, "the class is unknown") {
			unknown |= engine.UnknownClass
		}
		recorded := call
		recorded.Params, recorded.CheckArguments = "", nil
		if rapid.Bool().Draw(t, "the name is unknown") {
			unknown |= engine.UnknownName
			recorded.Ref = ""
			drawNamed(t, &call)
		}
		if unknown&engine.UnknownGroups != 0 {
			recorded.Subject = withGroups(call.Subject, nil)
		}
		if unknown&engine.UnknownClass != 0 {
			recorded.Facts = drawFacts(t)
		}
		got := set.Replay(recorded, unknown|engine.UnknownArguments)
		for _, params := range append(slices.Sorted(maps.Keys(someParams)), moreParams...) {
			for _, check := range slices.Sorted(maps.Keys(someChecks)) {
				call.Params, call.CheckArguments = params, someChecks[check]
				d := set.Decide(call)
				if got.Needs == 0 && (d.Effect != got.Decision.Effect || d.Enforced() != got.Decision.Enforced()) {
					t.Fatalf("%s, %s: the decision is %v (%s, %s), and the known decision is %v (%s)", params, check, d.Effect, d.Code, d.Rule, got.Decision.Effect, got.Decision.Rule)
				}
				if permits(d.Effect) > permits(got.MostPermissive) || permits(d.Enforced()) > permits(got.MostPermissive) {
					t.Fatalf("%s, %s: the decision is %v (%s), and the most permissive is %v", params, check, d.Effect, d.Rule, got.MostPermissive)
				}
			}
		}
	})
}

// TestReplay_WithArgumentsDecidesTheCall draws a call whose arguments are known. Replay must know the decision, unless
// a rule checks arguments against a schema. If Replay knows the decision, Decide must make the same decision.
func TestReplay_WithArgumentsDecidesTheCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		strict := slices.ContainsFunc(documents, func(d engine.Document) bool {
			return slices.ContainsFunc(d.Rules, func(r engine.Rule) bool { return r.Strict })
		})
		set, err := engine.Compile(documents, drawObserved(t, documents))
		if err != nil {
			t.Fatal(err)
		}
		call.Method, call.Ref = "", ""
		call.Params = rapid.SampledFrom(append(slices.Sorted(maps.Keys(someParams)), moreParams...)).Draw(t, "params")
		got := set.Replay(call, 0)
		if got.Needs != 0 && !strict {
			t.Fatalf("the decision needs %b", got.Needs)
		}
		for _, check := range slices.Sorted(maps.Keys(someChecks)) {
			call.CheckArguments = someChecks[check]
			d := set.Decide(call)
			if got.Needs == 0 && (d.Effect != got.Decision.Effect || d.Enforced() != got.Decision.Enforced()) {
				t.Fatalf("%s, %s: the decision is %v (%s, %s), and the replayed one is %v (%s)", call.Params, check, d.Effect, d.Code, d.Rule, got.Decision.Effect, got.Decision.Rule)
			}
			if permits(d.Effect) > permits(got.MostPermissive) {
				t.Fatalf("%s, %s: the decision is %v (%s), and the most permissive is %v", call.Params, check, d.Effect, d.Rule, got.MostPermissive)
			}
		}
	})
}

// permits returns a number that is greater for more permissive effects. An allowed call is the most permissive.
func permits(e engine.Effect) int {
	return slices.Index([]engine.Effect{engine.Deny, engine.RequireApproval, engine.Allow}, e)
}

func withGroups(s engine.Subject, groups []string) engine.Subject {
	s.Caller.Groups, s.Chain = groups, slices.Clone(s.Chain)
	for i := range s.Chain {
		s.Chain[i].Groups = groups
	}
	return s
}

// TestReplay_KnowsTheDecisionWithoutUnknownValues draws a call for which no rule reads arguments and everything else is
// known. Replay must know the decision, and Decide must make the same decision.
func TestReplay_KnowsTheDecisionWithoutUnknownValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		for i := range documents {
			for j := range documents[i].Rules {
				r := &documents[i].Rules[j]
				if r.Strict = false; strings.Contains(r.When, "args") {
					r.When = `caller.agent == "ci-1"`
				}
			}
			for j := range documents[i].Rules {
				if r := &documents[i].Rules[j]; r.Action == engine.ActionNone && r.Limits == nil && r.Timeout == 0 && (!r.Otherwise || r.Reason == "") {
					r.Action = engine.ActionDeny
				}
			}
		}
		set, err := engine.Compile(documents, drawObserved(t, documents))
		if err != nil {
			t.Fatal(err)
		}
		call.Method, call.Ref = rapid.SampledFrom([]string{"", "prompts/get", "resources/read", "x"}).Draw(t, "method without a kind"), ""
		got, want := set.Replay(call, engine.UnknownArguments), set.Decide(call)
		text := func(d engine.Decision) string { return fmt.Sprint(d.Effect, d.Enforced(), d.Code, d.Rule, d.Hidden) }
		if diff := cmp.Diff(text(want), text(got.Decision)); diff != "" || got.Needs != 0 || len(got.Rules) > 0 {
			t.Fatalf("needs %b, rules %v (-decided +replayed):\n%s", got.Needs, got.Rules, diff)
		}
	})
}

func TestReplay_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	read := engine.Facts{Status: engine.Callable, Category: "read", Risk: "low"}
	rule := func(action engine.Action, change func(*engine.Rule)) engine.Rule {
		r := engine.Rule{Name: "r", Match: engine.Match{Tool: []string{"t"}}, Action: action}
		if change != nil {
			change(&r)
		}
		return r
	}
	allow := rule(engine.ActionAllow, nil)
	allow.Name = "a"
	when := func(text string) func(*engine.Rule) { return func(r *engine.Rule) { r.When = text } }
	for name, tt := range map[string]struct {
		rules   []engine.Rule
		by      engine.Default
		method  string
		unknown engine.Unknown
		want    string
	}{
		"nothing":                              {rules: []engine.Rule{allow}, want: "allow, up to allow"},
		"arguments of an allow":                {rules: []engine.Rule{rule(engine.ActionAllow, when("args.n == 1"))}, want: "needs arguments for [d/r], up to allow"},
		"arguments of a deny":                  {rules: []engine.Rule{allow, rule(engine.ActionDeny, when("args.n == 1"))}, want: "needs arguments for [d/r], up to allow"},
		"arguments where another rule denies":  {rules: []engine.Rule{rule(engine.ActionAllow, when("args.n == 1")), {Name: "no", Match: engine.Match{Tool: []string{"t"}}, Action: engine.ActionDeny}}, want: "deny, up to deny"},
		"arguments of an approval":             {rules: []engine.Rule{rule(engine.ActionRequireApproval, when("args.n == 1"))}, want: "needs arguments for [d/r], up to require_approval"},
		"arguments that only look alike":       {rules: []engine.Rule{allow, rule(engine.ActionDeny, when(`caller.subject == "ben" && args.n == 1`))}, want: "needs arguments for [d/r], up to allow"},
		"arguments for a schema":               {rules: []engine.Rule{rule(engine.ActionAllow, func(r *engine.Rule) { r.Strict = true })}, want: "needs arguments for [d/r], up to allow"},
		"too many conditions":                  {rules: manyConditions(), want: "needs arguments for [d/r0 d/r1 d/r2 d/r3 d/r4 d/r5], up to allow"},
		"groups that no rule reads":            {rules: []engine.Rule{allow}, unknown: engine.UnknownGroups, want: "allow, up to allow"},
		"groups of a match":                    {rules: []engine.Rule{rule(engine.ActionAllow, func(r *engine.Rule) { r.Match.Groups = []string{"ops"} })}, unknown: engine.UnknownGroups, want: "needs groups for [d/r], up to allow"},
		"groups of a condition":                {rules: []engine.Rule{rule(engine.ActionDeny, when(`"ops" in caller.groups`))}, unknown: engine.UnknownGroups, want: "needs groups for [d/r], up to allow"},
		"scopes of a condition":                {rules: []engine.Rule{rule(engine.ActionDeny, when(`"ops" in caller.scopes`))}, unknown: engine.UnknownGroups, want: "needs groups for [d/r], up to allow"},
		"scopes that a rule needs":             {rules: []engine.Rule{rule(engine.ActionAllow, func(r *engine.Rule) { r.NeedsScope = []string{"ops"} })}, unknown: engine.UnknownGroups, want: "needs groups for [d/r], up to allow"},
		"scopes of a token of the mesh":        {rules: []engine.Rule{rule(engine.ActionAllow, func(r *engine.Rule) { r.NeedsScope = []string{"ops"} })}, want: "deny, up to deny"},
		"groups of a chain":                    {rules: []engine.Rule{rule(engine.ActionDeny, when(`caller.chain.exists(p, "ops" in p["groups"])`))}, unknown: engine.UnknownGroups, want: "needs groups for [d/r], up to allow"},
		"groups of others":                     {rules: []engine.Rule{allow, rule(engine.ActionDeny, func(r *engine.Rule) { r.Match.Groups, r.Match.Principal = []string{"ops"}, []string{"ben"} })}, unknown: engine.UnknownGroups, want: "allow, up to allow"},
		"a class that no rule reads":           {rules: []engine.Rule{allow}, unknown: engine.UnknownClass, want: "allow, up to allow"},
		"the class of a match":                 {rules: []engine.Rule{rule(engine.ActionAllow, func(r *engine.Rule) { r.Match.Tool, r.Match.Category = nil, []string{"read"} })}, unknown: engine.UnknownClass, want: "needs class for [d/r], up to allow"},
		"the class of a match of another kind": {rules: []engine.Rule{allow, rule(engine.ActionDeny, func(r *engine.Rule) { r.Match.Tool, r.Match.Category = nil, []string{"write"} })}, unknown: engine.UnknownClass, want: "needs class for [d/r], up to allow"},
		"the class of a condition":             {rules: []engine.Rule{rule(engine.ActionAllow, when(`tool.known && tool.risk == "low"`))}, unknown: engine.UnknownClass, want: "needs class for [d/r], up to allow"},
		"the class of the default":             {by: engine.DefaultByRisk, unknown: engine.UnknownClass, want: "needs class for [d/default:by_risk], up to allow"},
		"a known class":                        {by: engine.DefaultByRisk, want: "require_approval, up to require_approval"},
		"the kind of a completion":             {rules: []engine.Rule{{Name: "p", Match: engine.Match{Prompt: []string{"t"}}, Action: engine.ActionAllow}}, method: "completion/complete", unknown: engine.UnknownName, want: "needs name for [d/p], up to allow"},
		"the query of a URI":                   {rules: []engine.Rule{{Name: "u", Match: engine.Match{URI: []string{"a:t"}}, Action: engine.ActionAllow}}, method: "resources/read", unknown: engine.UnknownName, want: "needs name for [d/u], up to allow"},
		"a URI of a condition":                 {rules: []engine.Rule{{Name: "u", Match: engine.Match{Method: []string{"resources/read"}}, When: `call.uri == "t"`, Action: engine.ActionAllow}}, method: "resources/read", unknown: engine.UnknownName, want: "needs name for [d/u], up to allow"},
		"a URI that rules do not read":         {rules: []engine.Rule{{Name: "p", Match: engine.Match{Prompt: []string{"t"}}, Action: engine.ActionAllow}}, method: "resources/read", unknown: engine.UnknownName, want: "deny, up to deny"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, err := engine.Compile([]engine.Document{{Name: "d", Default: tt.by, Rules: tt.rules}}, options)
			if err != nil {
				t.Fatal(err)
			}
			call := engine.Call{Method: tt.method, Server: "s", Tool: "t", Subject: person("ana"), Facts: read}
			if diff := cmp.Diff(tt.want, replayText(set.Replay(call, tt.unknown|engine.UnknownArguments))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// manyConditions returns rules with so many conditions that Replay does not try all combinations of their results. Each
// of these rules alone could determine the decision.
func manyConditions() (out []engine.Rule) {
	for i := range 6 {
		out = append(out, engine.Rule{Name: fmt.Sprintf("r%d", i), Match: engine.Match{Tool: []string{"t"}}, When: fmt.Sprintf("args.n == %d", i), Action: engine.ActionAllow})
	}
	return out
}

func replayText(r engine.Replay) string {
	up := fmt.Sprintf(", up to %v", r.MostPermissive)
	if r.Needs == 0 {
		return r.Decision.Effect.String() + up
	}
	var needs []string
	for i, name := range []string{"arguments", "groups", "class", "name"} {
		if r.Needs&(1<<i) != 0 {
			needs = append(needs, name)
		}
	}
	rules := slices.Clone(r.Rules)
	slices.SortFunc(rules, func(a, b engine.RuleRef) int { return strings.Compare(a.String(), b.String()) })
	return fmt.Sprintf("needs %s for %v%s", strings.Join(needs, "+"), rules, up)
}

func TestReadsTime_FindsConditions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"": false, "args.n == 1": false, "now.getHours() < 8": true} {
		set, err := engine.Compile([]engine.Document{{Name: "d", Rules: []engine.Rule{{Name: "r", Match: engine.Match{Tool: []string{"t"}}, When: text, Action: engine.ActionDeny}}}}, options)
		if err != nil {
			t.Fatal(err)
		}
		if set.ReadsTime() != want {
			t.Errorf("%q: ReadsTime is %t", text, !want)
		}
	}
}
