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

// accessText describes the cases of a [engine.ToolAccess], with one case on each line.
func accessText(a engine.ToolAccess) string {
	var out []string
	for _, c := range a.Cases {
		line := strings.TrimSpace(fmt.Sprintf("%v %v %v", c.Decision.Effect, c.Decision.Code, strings.TrimPrefix(c.Decision.Rule.String(), "/")))
		if c.Condition != "" {
			line += fmt.Sprintf(" if %s is %t", c.Condition, c.Holds)
		}
		for _, l := range c.Decision.Limits {
			line += fmt.Sprintf(" %d in %s", l.Max, l.Window)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestToolAccess_NamesTheDecisionsThatCallsCanGet(t *testing.T) {
	t.Parallel()
	set := compile(t, engine.Document{Name: "d", Default: engine.DefaultDeny, Rules: []engine.Rule{
		{Tool: "read", Action: engine.ActionAllow},
		{Tool: "write", When: `args.path == "/a"`, Action: engine.ActionAllow},
		{Tool: "write", When: `args.path == "/a"`, Otherwise: true, Action: engine.ActionDeny, Reason: "only a"},
		{Tool: "pay", Action: engine.ActionRequireApproval, Approvers: []string{"finance"}, Quorum: 2},
		{Tool: "known", When: `caller.subject == "ana"`, Action: engine.ActionAllow},
		{Tool: "gone", Action: engine.ActionHide},
		{Name: "slow", Match: engine.Match{Tool: []string{"read"}}, Limits: []engine.RateLimit{{Max: 3, Window: 1e9, Per: []engine.Dimension{engine.PerPrincipal}}}},
		{Name: "many", Match: engine.Match{Tool: []string{"many"}}, When: "args.a == 1", Action: engine.ActionAllow},
		{Name: "b", Match: engine.Match{Tool: []string{"many"}}, When: "args.b == 1", Action: engine.ActionDeny},
		{Name: "c", Match: engine.Match{Tool: []string{"many"}}, When: "args.c == 1", Action: engine.ActionDeny},
		{Name: "e", Match: engine.Match{Tool: []string{"many"}}, When: "args.e == 1", Action: engine.ActionDeny},
		{Name: "f", Match: engine.Match{Tool: []string{"many"}}, When: "args.f == 1", Action: engine.ActionDeny},
	}})
	for tool, want := range map[string]string{
		"read":  "allow  d/tools.read 3 in 1s",
		"write": "allow  d/tools.write if args.path == \"/a\" is true\ndeny denied_by_rule d/tools.write.otherwise if args.path == \"/a\" is false\ndeny type_error d/tools.write.otherwise",
		"pay":   "require_approval approval_required d/tools.pay",
		"known": "allow  d/tools.known",
		"gone":  "deny tool_unknown d/tools.gone",
		"other": "deny denied_by_default",
		"many": `allow  d/many if args.a == 1 is true
deny denied_by_default
deny denied_by_rule d/b if args.b == 1 is true
deny type_error d/b
deny denied_by_rule d/c if args.c == 1 is true
deny type_error d/c
deny denied_by_rule d/e if args.e == 1 is true
deny type_error d/e
deny denied_by_rule d/f if args.f == 1 is true
deny type_error d/f
deny type_error d/many`,
		"": "deny tool_name_invalid",
	} {
		got := set.ToolAccess(person("ana"), "s", tool, callable)
		if diff := cmp.Diff(want, accessText(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tool, diff)
		}
		if depends := tool == "write" || tool == "many"; got.Depends() != depends || got.Incomplete != (tool == "many") {
			t.Errorf("%s depends on arguments: %t, incomplete: %t", tool, got.Depends(), got.Incomplete)
		}
	}
	stopped := set.ToolAccess(person("ana"), "s", "read", engine.Facts{Status: engine.Changed})
	if got := accessText(stopped); got != "deny tool_changed" {
		t.Errorf("a tool whose definition has changed: %s", got)
	}
}

// A tool has 30 rules, each with a condition. The result of ToolAccess contains 20 of the possible decisions, and is
// marked as incomplete.
func TestToolAccess_IsBoundedForManyConditions(t *testing.T) {
	t.Parallel()
	rules := []engine.Rule{{Tool: "t", Action: engine.ActionAllow}}
	for i := range 30 {
		rules = append(rules, engine.Rule{Name: fmt.Sprintf("r%02d", i), Match: engine.Match{Tool: []string{"t"}}, When: fmt.Sprintf("args.a == %d", i), Action: engine.ActionDeny})
	}
	got := compile(t, engine.Document{Name: "d", Default: engine.DefaultDeny, Rules: rules}).ToolAccess(person("ana"), "s", "t", callable)
	if !got.Incomplete || len(got.Cases) != 20 || got.Cases[0].Decision.Effect != engine.Allow {
		t.Errorf("incomplete %t, %d cases:\n%s", got.Incomplete, len(got.Cases), accessText(got))
	}
}

// TestToolAccess_ContainsTheDecisionOnEveryCall compares the result of ToolAccess with the decisions on calls whose
// arguments satisfy or do not satisfy the tool's schema. The rules are enforced or in observe mode. Each decision must
// be one of the cases. If all calls get the same effect according to ToolAccess, all decisions must have this effect.
func TestToolAccess_ContainsTheDecisionOnEveryCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		drawScopes(t, &call)
		call.Method, call.Ref = "", ""
		if rapid.IntRange(0, 4).Draw(t, "is not callable") == 0 {
			call.Facts.Status = rapid.SampledFrom([]engine.Status{engine.Unlisted, engine.Changed, engine.Quarantined}).Draw(t, "status")
		}
		set := mustCompile(t, documents, drawObserved(t, documents))
		access := set.ToolAccess(call.Subject, call.Server, call.Tool, call.Facts)
		var effects []engine.Effect
		for _, params := range slices.Sorted(maps.Keys(someParams)) {
			for _, check := range slices.Sorted(maps.Keys(someChecks)) {
				call.Params, call.CheckArguments = params, someChecks[check]
				d := set.Decide(call)
				effects = append(effects, d.Effect)
				checkAccessCase(t, access, d, params+", "+check)
				checkAccessLimits(t, access, d)
			}
		}
		if first := access.Cases[0].Decision.Effect; !access.Depends() && slices.ContainsFunc(effects, func(e engine.Effect) bool { return e != first }) {
			t.Fatalf("the calls get %v, and the access does not depend on their arguments:\n%s", effects, accessText(access))
		}
	})
}

// checkAccessCase checks that the access contains the decision on a call. If the access is incomplete, the check fails
// only if the access says that all calls are refused, but this call is not refused.
func checkAccessCase(t *rapid.T, access engine.ToolAccess, d engine.Decision, call string) {
	is := func(c engine.AccessCase) bool {
		return c.Decision.Effect == d.Effect && c.Decision.Code == d.Code && c.Decision.Rule == d.Rule
	}
	switch {
	case access.Incomplete:
		if d.Effect != engine.Deny && access.Cases[0].Decision.Effect == engine.Deny {
			t.Fatalf("%s gets %v, and the incomplete access is\n%s", call, d.Effect, accessText(access))
		}
	case !slices.ContainsFunc(access.Cases, is):
		t.Fatalf("%s gets %v %s %s, and the access is\n%s", call, d.Effect, d.Code, d.Rule, accessText(access))
	}
}

// checkAccessLimits checks that the access contains all limits in a decision.
func checkAccessLimits(t *rapid.T, access engine.ToolAccess, d engine.Decision) {
	for _, l := range d.Limits {
		in := func(o engine.Limit) bool { return o.Bucket == l.Bucket }
		if !access.Incomplete && !slices.ContainsFunc(access.Cases, func(c engine.AccessCase) bool { return slices.ContainsFunc(c.Decision.Limits, in) }) {
			t.Fatalf("the limit of %s is missing in\n%s", l.Rule, accessText(access))
		}
	}
}
