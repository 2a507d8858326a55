package cli

import (
	"bytes"
	"strings"
	"testing"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func TestAccessAnswer_AddsTheCountsOfPages(t *testing.T) {
	t.Parallel()
	page := func(server string, outcome policyv1.AccessOutcome, tools int32) *policyv1.ServerAccess {
		return &policyv1.ServerAccess{Server: server, Listed: true, CouldAllow: true, Counts: []*policyv1.OutcomeCount{{Outcome: outcome, Tools: tools}}}
	}
	a := new(accessAnswer)
	a.addServers([]*policyv1.ServerAccess{page("a", policyv1.AccessOutcome_ACCESS_OUTCOME_DENIED, 2000)})
	a.addServers([]*policyv1.ServerAccess{page("a", policyv1.AccessOutcome_ACCESS_OUTCOME_ALLOWED, 3), page("b", policyv1.AccessOutcome_ACCESS_OUTCOME_DENIED, 1)})
	a.addServers([]*policyv1.ServerAccess{page("a", policyv1.AccessOutcome_ACCESS_OUTCOME_DENIED, 5)})
	var got []string
	for _, s := range a.servers {
		got = append(got, s.GetServer()+": "+serverAccessText(s))
	}
	if want := "a: 2008 tools: 3 allowed, 2005 denied\nb: 1 tool: 1 denied"; strings.Join(got, "\n") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// If the cases of a tool are incomplete, the output says so, and names the command that shows all cases.
func TestPrintAccess_SaysThatItIsIncomplete(t *testing.T) {
	t.Parallel()
	for _, incomplete := range []bool{false, true} {
		tool := &policyv1.ToolAccess{Name: "many", Outcome: policyv1.AccessOutcome_ACCESS_OUTCOME_DEPENDS, Incomplete: incomplete, Cases: []*policyv1.AccessCase{
			{Effect: allowed, Condition: "args.a == 1", Holds: true, Rule: &policyv1.RuleRef{Document: "d", Rule: "r"}}, {Effect: refused},
		}}
		var out bytes.Buffer
		cli := newTool("sluice", &out, &out)
		err := cli.printAccess(&accessAnswer{servers: []*policyv1.ServerAccess{{Server: "s", Listed: true}}, tools: map[string][]*policyv1.ToolAccess{"s": {tool}}})
		if err != nil {
			t.Fatal(err)
		}
		got := singleSpaced(out.String())
		if !strings.Contains(got, "many depends d/r allow if args.a == 1\ndefault deny otherwise") {
			t.Errorf("the cases are missing in\n%s", got)
		}
		for _, text := range []string{"- incomplete: too many conditions", "so further results are possible", "`sluice policy explain --server SERVER --tool TOOL --arg NAME=VALUE` shows the result of one call"} {
			if strings.Contains(got, text) != incomplete {
				t.Errorf("incomplete %t, and the output contains %q: %t\n%s", incomplete, text, !incomplete, got)
			}
		}
	}
}
