package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
)

func decisionOf(effect policyv1.Effect, rule string) *policyv1.Decision {
	d := &policyv1.Decision{Effect: effect}
	if rule != "" {
		d.Rule = &policyv1.RuleRef{Document: "team", Rule: rule}
	}
	return d
}

const (
	allowed = policyv1.Effect_EFFECT_ALLOW
	refused = policyv1.Effect_EFFECT_DENY
	held    = policyv1.Effect_EFFECT_REQUIRE_APPROVAL
)

func flipOf(kind policyv1.FlipKind, name string, before, after *policyv1.Decision) *policyv1.Flip {
	return &policyv1.Flip{
		Call: &policyv1.Call{Server: "files", Name: name}, Before: before, After: after, Kind: kind,
		Subject: &identityv1.Principal{Tenant: "default", Subject: "any-other-caller", Agent: "any-other-agent"}, AnyCaller: true, Subjects: 1,
	}
}

// diffAnswer returns a response with one changed call of each kind.
func diffAnswer() *policyv1.DiffRevisionsResponse {
	opens, terms, closes := policyv1.FlipKind_FLIP_KIND_OPENS, policyv1.FlipKind_FLIP_KIND_TERMS, policyv1.FlipKind_FLIP_KIND_CLOSES
	observed := decisionOf(allowed, "all")
	observed.Observed = &policyv1.Observation{Effect: refused}
	conditional := flipOf(opens, "write", decisionOf(refused, ""), decisionOf(allowed, "tools.write"))
	conditional.Conditions = []*policyv1.AssumedCondition{
		{Condition: `args.path == "/a"`, Result: policyv1.ConditionResult_CONDITION_RESULT_TRUE},
		{Condition: `args.b`, Result: policyv1.ConditionResult_CONDITION_RESULT_FALSE},
		{Condition: `args.c`, Result: policyv1.ConditionResult_CONDITION_RESULT_FAILED},
	}
	conditional.InvalidArguments = true
	conditional.AnyCaller, conditional.Subject = false, &identityv1.Principal{Tenant: "default", Subject: "ana", Agent: "ci", Groups: []string{"dev"}}
	conditional.FurtherSubjects = []*identityv1.Principal{
		{Tenant: "acme", Subject: "any-other-caller", Agent: "any-other-agent"},
		{Tenant: "default", Subject: "bob", Agent: "any-other-agent", Chain: []*identityv1.Principal{{Tenant: "default", Subject: "eve"}}},
	}
	conditional.Subjects = 5
	pattern := flipOf(opens, "any", decisionOf(held, "tools.any"), decisionOf(allowed, ""))
	pattern.Pattern, pattern.ServerPattern = "*", "files-*"
	pattern.Before.ToolClass = &policyv1.ToolClass{Category: mcpv1.Category_CATEGORY_READ, Risk: policyv1.Risk_RISK_LOW}
	limited := flipOf(terms, "list", decisionOf(allowed, "tools.list"), decisionOf(allowed, "tools.list"))
	limited.Before.Limits = []*policyv1.RuleLimit{{Limit: &ratelimitv1.Limit{Max: "3", Window: durationpb.New(time.Minute)}, Per: []string{"session", "tool"}}}
	hidden := flipOf(closes, "gone", decisionOf(allowed, ""), decisionOf(refused, "tools.gone"))
	hidden.After.Hidden, hidden.Calls = true, 4
	prompt := flipOf(closes, "review", decisionOf(allowed, "p"), decisionOf(refused, ""))
	prompt.Call.Method = "prompts/get"
	flips := []*policyv1.Flip{
		flipOf(opens, "read", decisionOf(refused, "no"), observed), flipOf(opens, "stat", decisionOf(refused, "no"), observed),
		conditional, pattern, limited, hidden, prompt,
	}
	return &policyv1.DiffRevisionsResponse{Flips: flips, Totals: &policyv1.DiffTotals{Total: 7, Opened: 4, Closed: 2, Compared: 100, Servers: 1}}
}

func TestPrintPolicyDiff_PrintsOneScreen(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	cli := newTool("sluice", &out, &errOut)
	if err := cli.printPolicyDiff(diffAnswer(), false); !errors.Is(err, errSilent) {
		t.Errorf("the error is %v, want exit code 1", err)
	}
	got := out.String()
	for _, line := range []string{
		"Compared 100 calls, changes: 7 (4 open something, 2 close something, 1 change limits or other terms).\n\nRESULT ",
		"\ndeny -> allow (observed) files/read, files/stat any caller - team/no -> team/all\n",
		"\ndeny -> allow files/write ana, agent ci, groups dev; tenant acme and 3 more args.path == \"/a\"; not args.b; args.c can't be evaluated; the arguments do not fit the schema default -> team/tools.write\n",
		"\nrequire_approval -> allow files-*/* (read, low) any caller - team/tools.any -> default\n",
		"\nallow: 3 in 1m0s per session+tool -> no limit files/list any caller - team/tools.list\n",
		"\nallow -> hide files/gone any caller - default -> team/tools.gone\n",
		"\nallow -> deny files prompts/get review any caller - team/p -> default\n",
	} {
		if !strings.Contains(singleSpaced(got), line) {
			t.Errorf("%q is missing in\n%s", line, got)
		}
	}
	out.Reset()
	_ = cli.printPolicyDiff(diffAnswer(), true)
	if got := singleSpaced(out.String()); !strings.Contains(got, "\nCALLS RESULT") || !strings.Contains(got, "\n4 allow -> hide") || !strings.Contains(got, "contains no arguments") {
		t.Errorf("with recorded calls:\n%s", got)
	}
}

func TestPrintPolicyDiff_SaysThatNoListOfToolsWasFound(t *testing.T) {
	t.Parallel()
	for servers, want := range map[int32]bool{0: true, 1: false} {
		resp := diffAnswer()
		resp.Totals.Servers = servers
		var out bytes.Buffer
		_ = newTool("sluice", &out, &out).printPolicyDiff(resp, false)
		if got := strings.Contains(out.String(), "No list of a server's tools was found"); got != want {
			t.Errorf("with %d servers:\n%s", servers, out.String())
		}
	}
}

func singleSpaced(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestPrintPolicyDiff_LimitsTheRows(t *testing.T) {
	t.Parallel()
	resp := &policyv1.DiffRevisionsResponse{Totals: &policyv1.DiffTotals{Total: 30, Closed: 30, Servers: 1}}
	for i := range 30 {
		resp.Flips = append(resp.Flips, flipOf(policyv1.FlipKind_FLIP_KIND_CLOSES, fmt.Sprint("t", i), decisionOf(allowed, ""), decisionOf(refused, fmt.Sprint("r", i))))
	}
	var out bytes.Buffer
	if err := newTool("sluice", &out, &out).printPolicyDiff(resp, false); err != nil {
		t.Errorf("nothing opens, and the error is %v", err)
	}
	if got := out.String(); strings.Count(got, "\n") != 2+1+maxDiffRows+2 || !strings.Contains(got, "not shown: 10 more rows") {
		t.Errorf("printed\n%s", got)
	}
}

// An incomplete comparison has its own exit code, unless the change would allow more calls.
func TestPrintPolicyDiff_FailsIfItIsIncomplete(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		totals *policyv1.DiffTotals
		code   int
		want   string
	}{
		"it ended early":      {&policyv1.DiffTotals{EndedEarly: true}, 3, "there are too many callers or tags"},
		"too many conditions": {&policyv1.DiffTotals{Uncertain: 2}, 3, "2 calls depend on too many conditions"},
		"a finding":           {&policyv1.DiffTotals{Findings: []*policyv1.Finding{{Path: "a.yaml", Line: 3, Column: 1, Message: "is wrong"}}}, 2, "the documents do not load:\na.yaml:3:1: is wrong"},
	} {
		var out bytes.Buffer
		err := comparisonError(newTool("sluice", &out, &out).printPolicyDiff(&policyv1.DiffRevisionsResponse{Totals: tt.totals}, false))
		var code exitError
		if !errors.As(err, &code) || code.code != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	err := newTool("sluice", new(bytes.Buffer), new(bytes.Buffer)).printPolicyDiff(&policyv1.DiffRevisionsResponse{
		Totals: &policyv1.DiffTotals{EndedEarly: true, Opened: 1, Total: 1}, Flips: []*policyv1.Flip{flipOf(1, "t", decisionOf(refused, ""), decisionOf(allowed, ""))},
	}, false)
	if !errors.Is(err, errSilent) {
		t.Errorf("something opens, and the error is %v", err)
	}
}

func TestRecordedCall_HasWhatTheRecordHas(t *testing.T) {
	t.Parallel()
	r := &gatewayv1.Record{
		Server: "files", Method: "tools/call", Tool: "read", DecisionId: "d", DefinitionDigest: []byte("x"),
		Principal: &identityv1.Principal{Tenant: "default", Subject: "bot", Agent: "a", Owner: "ana", Session: "s", Chain: []*identityv1.Principal{{Tenant: "default", Subject: "ana"}}},
	}
	c := recordedCall(r)
	if diff := cmp.Diff("bot a ana <- ana; files tools/call read x d 1", fmt.Sprintf("%s %s %s <- %s; %s %s %s %s %s %d", c.GetSubject().GetSubject(), c.GetSubject().GetAgent(), c.GetSubject().GetOwner(),
		c.GetSubject().GetChain()[0].GetSubject(), c.GetCall().GetServer(), c.GetCall().GetMethod(), c.GetCall().GetName(), c.GetCall().GetDefinitionDigest(), c.GetDecisionId(), c.GetCount())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if recordedCall(&gatewayv1.Record{Server: "files"}) != nil {
		t.Error("a record without a method is a call")
	}
}
