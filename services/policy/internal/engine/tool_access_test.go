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

// accessText describes the cases of an access, one in each line.
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
		"many":  "allow  d/many",
		"":      "deny tool_name_invalid",
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

// TestToolAccess_ContainsTheDecisionOnEveryCall compares the access to a tool with the decisions on calls with several
// arguments: each decision is a case, and the same effect for all arguments is the only effect of the cases.
func TestToolAccess_ContainsTheDecisionOnEveryCall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		documents, call := drawDocuments(t, "d"), drawCall(t)
		call.Method, call.Ref = "", ""
		set, err := engine.Compile(documents, options)
		if err != nil {
			t.Fatal(err)
		}
		access := set.ToolAccess(call.Subject, call.Server, call.Tool, call.Facts)
		for _, params := range slices.Sorted(maps.Keys(someParams)) {
			call.Params = params
			d := set.Decide(call)
			is := func(c engine.AccessCase) bool {
				return c.Decision.Effect == d.Effect && c.Decision.Code == d.Code && c.Decision.Rule == d.Rule
			}
			switch {
			case access.Incomplete:
				if d.Effect != engine.Deny && access.Cases[0].Decision.Effect == engine.Deny {
					t.Fatalf("%s gets %v, and the incomplete access is\n%s", params, d.Effect, accessText(access))
				}
			case !slices.ContainsFunc(access.Cases, is):
				t.Fatalf("%s gets %v %s %s, and the access is\n%s", params, d.Effect, d.Code, d.Rule, accessText(access))
			}
			if !access.Depends() && d.Effect != access.Cases[0].Decision.Effect {
				t.Fatalf("%s gets %v, and no call should get that:\n%s", params, d.Effect, accessText(access))
			}
			checkAccessLimits(t, access, d)
		}
	})
}

// checkAccessLimits checks that the access contains all limits of a decision.
func checkAccessLimits(t *rapid.T, access engine.ToolAccess, d engine.Decision) {
	for _, l := range d.Limits {
		in := func(o engine.Limit) bool { return o.Bucket == l.Bucket }
		if !access.Incomplete && !slices.ContainsFunc(access.Cases, func(c engine.AccessCase) bool { return slices.ContainsFunc(c.Decision.Limits, in) }) {
			t.Fatalf("the limit of %s is missing in\n%s", l.Rule, accessText(access))
		}
	}
}
