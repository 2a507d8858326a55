package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const testedPolicy = `version: 1
name: tested
server: raw
default: deny
rules:
  - {name: only-drafts, match: {tool: "*"}, when: args.draft == true, action: allow}
tests:
  - name: drafts only
    call: {tool: safe, args: {draft: true}}
    want: {action: allow, rule: only-drafts}
  - call: {tool: safe, args: {draft: false}}
    want: {action: deny, code: denied_by_default}
`

// A policy takes effect if the tests in it pass. After an edit that makes a test fail, the previous policy stays in
// force. `policy test`, `policy lint` and `sluice status` report the failing test and the reason.
func TestDocumentTests_AFailingTestKeepsTheOldPolicy(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: testedPolicy}))
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	if resp := c.Call("safe", `{"draft":true}`); resp.IsError(t) {
		t.Errorf("a call that the policy allows: %s", resp.Body)
	}
	run := func(command ...string) stack.CommandResult { return stack.Run(t, stack.Command{Args: command}) }
	passed := run("policy", "test", p.Policy)
	stack.CheckCommand(t, passed, 0, passed.Stdout, "ok: 2 test(s) in 1 document(s)")
	lint := run("policy", "lint", p.Policy)
	stack.CheckCommand(t, lint, 0, lint.Stdout, "1 document(s) load, 2 test(s) pass")

	stack.ReplaceInFile(t, p.Policy, "args.draft == true", "args.draft != true")
	failures := []string{
		`:8:5: `, `tests[0]: the test "drafts only" fails: wanted the action allow, got deny; wanted the rule tested/only-drafts, but no rule decided`,
		"The condition of tested/only-drafts, `args.draft != true`, is false: args.draft is true",
		`:11:5: `, `tests[1]: the test fails: wanted the action deny, got allow`,
	}
	for _, command := range []string{"test", "lint"} {
		failed := run("policy", command, p.Policy)
		stack.CheckCommand(t, failed, 1, failed.Stdout, failures...)
	}
	checkReports(t, p)
	status := stack.Command{Args: []string{"status", "--config", p.Config, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}
	eventually.Holds(t, "sluice status names the test", func() bool {
		return strings.Contains(stack.Run(t, status).Stdout, `the test "drafts only" fails`)
	})
	if resp := c.Call("safe", `{"draft":true}`); resp.IsError(t) {
		t.Errorf("under the old policy: %s", resp.Body)
	}
	if d := c.Call("safe", `{"draft":false}`).Decision(t); d.Code != "denied_by_default" {
		t.Errorf("under the old policy: %+v", d)
	}
}

// checkReports runs failing policy tests offline and in the running mesh, and checks the JUnit report of each run.
func checkReports(t *testing.T, p *stack.Process) {
	t.Helper()
	for _, args := range [][]string{{}, {"--live", "--config", p.Config, "--addr", p.GRPC}} {
		file := filepath.Join(t.TempDir(), "report.xml")
		failed := stack.Run(t, stack.Command{
			Args: append([]string{"policy", "test", p.Policy, "--junit", file}, args...), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
		stack.CheckCommand(t, failed, 1, failed.Stdout, `tests[0]: the test "drafts only" fails`, "tests[1]: the test fails")
		report := stack.ReadFile(t, file)
		for _, want := range []string{
			`<testsuites tests="2" failures="2" errors="0">`, `<testcase name="drafts only" classname="tested" file="` + p.Policy + `" line="8">`,
			`<failure message="tests[0]: the test &#34;drafts only&#34; fails: wanted the action allow, got deny;`,
		} {
			if !strings.Contains(report, want) {
				t.Errorf("%v: %q is missing in\n%s", args, want, report)
			}
		}
	}
}

// The starter policy refers to the schema file that `sluice up` writes. This file is the same as the output of `policy
// schema`.
func TestPolicySchema_IsWrittenBesideTheStarterPolicy(t *testing.T) {
	t.Parallel()
	dir := stack.WriteFolder(t, map[string]string{})
	p := stack.Launch(t, &stack.Stack{Dir: dir}, "--listen", stack.FreeAddr(t), "--grpc", stack.FreeAddr(t))
	eventually.Holds(t, "sluice up says that it is up", func() bool { return strings.Contains(p.Stdout(), "Stop with Ctrl-C.") })
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
	policies := filepath.Join(dir, ".sluice", "policies")
	starter, err := os.ReadFile(filepath.Join(policies, "starter.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(starter), "\n")
	named, ok := strings.CutPrefix(first, "# yaml-language-server: $schema=")
	if !ok {
		t.Fatalf("the starter policy begins with %q", first)
	}
	schema, err := os.ReadFile(filepath.Join(policies, named))
	if err != nil {
		t.Fatal(err)
	}
	if printed := stack.Run(t, stack.Command{Args: []string{"policy", "schema"}}); printed.Code != 0 || printed.Stdout != string(schema) {
		t.Errorf("policy schema exited with %d and printed\n%s", printed.Code, printed.Stdout)
	}
	passed := stack.Run(t, stack.Command{Args: []string{"policy", "test", policies}})
	stack.CheckCommand(t, passed, 0, passed.Stdout, "no tests in 2 document(s)")
}
