package condition_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// results contains the names that the tests use for the results.
var results = map[condition.Result]string{condition.True: "true", condition.False: "false", condition.Failed: "failed", condition.Unknown: "unknown"}

func testInput(t *testing.T) condition.Input {
	t.Helper()
	return condition.Input{
		Args: arguments(t, `{"amount":5}`), Server: "files", Tool: "write_file", Method: "tools/call",
		Caller: condition.Caller{Subject: "agent:default/coder", Agent: "coder", Tenant: "default", Groups: []string{"agents"}},
		Chain: []condition.Caller{{
			Subject: "ana", Tenant: "default", Groups: []string{"finance", "staff"}, Issuer: "corp", Client: "claude-code", Scopes: []string{"repo:read", "repo:write"},
		}},
		Class: condition.Class{Category: "write", Risk: "medium", Tags: []string{"files"}},
		Now:   time.Date(2026, 3, 29, 1, 30, 0, 0, time.UTC),
	}
}

func TestEvaluate_ReadsEachVariable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`call.server == "files" && call.tool == "write_file" && call.method == "tools/call"`: "true",
		`call.uri == ""`: "true",
		`caller.subject == "agent:default/coder" && caller.agent == "coder" && caller.tenant == "default"`: "true",
		`"agents" in caller.groups`:                                                                           "true",
		`size(caller.chain) == 1 && caller.chain[0].agent == ""`:                                              "true",
		`caller.chain.exists(p, p.subject == "ana" && "finance" in p.groups)`:                                 "true",
		`caller.chain[1].subject == "x"`:                                                                      "failed",
		`caller.issuer == "" && caller.client == "" && size(caller.scopes) == 0`:                              "true",
		`caller.chain.exists(p, p.issuer == "corp" && p.client == "claude-code" && "repo:write" in p.scopes)`: "true",
		`"repo:write" in caller.scopes`:                                                                       "false",
		`tool.known && tool.category == "write" && tool.risk in ["low", "medium"] && "files" in tool.tags`:    "true",
		// In Berlin, the clocks changed from 2:00 to 3:00 half an hour before the time of the call.
		`now.getHours("Europe/Berlin") == 3 && now.getHours() == 1 && now.getMinutes() == 30`:      "true",
		`now.getHours("+05:30") == 7 && now.getDayOfWeek() == 0`:                                   "true",
		`now < timestamp("2026-03-29T01:30:01Z") && now >= timestamp("2026-03-29T03:30:00+02:00")`: "true",
		`now.getHours("Europe/Berlin") in [9, 10]`:                                                 "false",
	} {
		in := testInput(t)
		if got, err := compile(t, text).Evaluate(&in); results[got] != want || (err != nil) != (got == condition.Failed) {
			t.Errorf("%s: %s, %v; want %s", text, results[got], err, want)
		}
	}
}

func TestEvaluate_FailsWithoutTheValuesItNeeds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`tool.category == "read"`:               "the tool has no class; test tool.known first",
		`tool.known && tool.category == "read"`: "",
		`now.getHours() == 1`:                   "the time is not known",
		`args.x == 1`:                           "there are no arguments",
		`size(caller.groups) == 0`:              "",
	} {
		_, err := compile(t, text).Evaluate(new(condition.Input))
		if got := errorText(err); got != want {
			t.Errorf("%s: %q; want %q", text, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestEvaluate_UnknownVariablesLeaveTheResultOpenOnlyIfItDependsOnThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`args.amount == 5`: "unknown",
		`args.amount == 5 && caller.agent == "other"`: "false",
		`args.amount == 5 || caller.agent == "coder"`: "true",
		`has(args.x)`:                  "unknown",
		`args.all(k, k == "x")`:        "unknown",
		`now.getHours() == 1`:          "unknown",
		`tool.risk == "low"`:           "unknown",
		`caller.agent == "coder"`:      "true",
		`caller.chain[7].agent == "x"`: "failed",
	} {
		in := testInput(t)
		in.Unknown = condition.VariableArgs | condition.VariableNow | condition.VariableTool
		if got, err := compile(t, text).Evaluate(&in); results[got] != want || (err != nil) != (got == condition.Failed) {
			t.Errorf("%s: %s, %v; want %s", text, results[got], err, want)
		}
	}
}

func TestEvaluate_FailsForArgumentsThatTheSchemaDoesNotHave(t *testing.T) {
	t.Parallel()
	in := condition.Input{Args: arguments(t, `{"amount":5,"note":"x"}`), Properties: []string{"amount"}}
	c := compile(t, `args.amount == 5`)
	if got, err := c.Evaluate(&in); got != condition.Failed || !strings.Contains(errorText(err), `the tool's schema has no argument "note"`) {
		t.Errorf("%s, %v", results[got], err)
	}
	if got, err := c.WithExtra().Evaluate(&in); got != condition.True || err != nil {
		t.Errorf("with extra arguments: %s, %v", results[got], err)
	}
	if got, err := compile(t, `call.tool == ""`).Evaluate(&in); got != condition.True || err != nil {
		t.Errorf("a condition that reads no arguments: %s, %v", results[got], err)
	}
}

func TestCompile_FailsForMisusedVariables(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`caller.chain.all(p, p.name == "x")`:  `a principal of caller.chain has no "name"; it has subject, agent, tenant, groups, issuer, client and scopes`,
		`caller.name == "x"`:                  "there are caller.subject, caller.agent, caller.tenant, caller.groups, caller.chain, caller.issuer, caller.client and caller.scopes",
		`call.name == "x"`:                    "there are call.server, call.tool, call.method and call.uri",
		`tool.class == "x"`:                   "there are tool.category, tool.risk, tool.tags and tool.known",
		`call.tool == 5`:                      "found no matching overload",
		`tool.known == "yes"`:                 "found no matching overload",
		`call.uri.startsWith("https://x")`:    "does not safely test a URL",
		`now.getHours(args.zone) == 1`:        "the time zone is not a constant string",
		`now.getHours("Europe/Nowhere") == 1`: `"Europe/Nowhere" is not a time zone`,
		`now.getHours("Local") == 1`:          `"Local" is not a time zone`,
		`now > timestamp(args.t)`:             "the argument of timestamp is not a constant string",
		`now > timestamp("tomorrow")`:         `"tomorrow" is not a time`,
		`now - now == now`:                    "conditions compare and don't calculate",
		`now > "2030-01-01T00:00:00Z"`:        "found no matching overload",
	} {
		if _, err := condition.Compile(text); !strings.Contains(errorText(err), want) || err == nil {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}
