package policy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const operatorPolicy = `version: "1"
default: deny
tools:
  pay:
    rules:
      - name: small amounts
        conditions: [{path: args.amount, op: lte, value: 100}]
        on_deny: at most 100
      - name: two an hour
        rate_limit: 2/hour
  read:
    rules: []
  drop:
    rules:
      - name: ask
        action: require_approval
`

const hostedPolicy = `{"version":"1","default":"allow","hide":["drop"],"tools":{"pay":{"deny_if":[{"conditions":[],"on_deny":"Requires human approval."}]}}}
`

// A policy that was written for another gateway is imported into a running mesh. The mesh then enforces the policy's
// conditions, its limits, and a rule that stands for what could not be translated.
func TestImport_TheMeshEnforcesAnImportedPolicy(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "pay", "drop"))
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: "version: 1\ndefault: deny\n"}))
	dir := stack.WriteFolder(t, map[string]string{"raw.yaml": operatorPolicy})
	file := filepath.Join(dir, "raw.yaml")
	imported := stack.Run(t, stack.Command{Args: []string{"policy", "import", "--server", "raw", file}})
	stack.CheckCommand(t, imported, 1, imported.Stderr, file+`:16:17: error: tools.drop.rules[0].action: "require_approval" is not an action of this format`)
	stack.CheckCommand(t, imported, 1, imported.Stdout, "server: raw\n", "rate_limit: {max: 2, window: 1h, per: [server, tool]}")
	stack.WriteFile(t, p.Policy, imported.Stdout)
	lint := stack.Run(t, stack.Command{Args: []string{"policy", "lint", p.Policy}})
	stack.CheckCommand(t, lint, 0, lint.Stdout, "1 document(s) load")

	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	eventually.Holds(t, "the imported policy is in force", func() bool { return !c.Call("read", `{}`).IsError(t) })
	if d := c.Call("pay", `{"amount":200}`).Decision(t); d.Code != "denied_by_rule" || !strings.Contains(d.Rule, "pay.small-amounts") {
		t.Errorf("a large amount: %+v", d)
	}
	for range 2 {
		if resp := c.Call("pay", `{"amount":5}`); resp.IsError(t) {
			t.Errorf("a small amount: %s", resp.Body)
		}
	}
	if d := c.Call("pay", `{"amount":5}`).Decision(t); d.Code != "rate_limited" {
		t.Errorf("a third call in an hour: %+v", d)
	}
	if d := c.Call("drop", `{}`).Decision(t); d.Code != "denied_by_rule" {
		t.Errorf("a tool whose rule is not translated: %+v", d)
	}
}

// The exit code of `policy import` is 0 if everything was translated, and 1 if the policy can't be translated. Without
// --from, the file extension determines the format.
func TestImport_ExitCodesAndFormats(t *testing.T) {
	t.Parallel()
	dir := stack.WriteFolder(t, map[string]string{"a.json": hostedPolicy, "b.txt": hostedPolicy, "c.yaml": "tools: {}\n"})
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"policy", "import", "--server", "raw"}, args...)})
	}
	hosted := run(filepath.Join(dir, "a.json"))
	stack.CheckCommand(t, hosted, 0, hosted.Stdout, "default: allow", "drop: {action: hide}", `reason: "Requires human approval."`)
	named := run(filepath.Join(dir, "b.txt"), "--from", "hosted-json")
	stack.CheckCommand(t, named, 0, named.Stdout, "drop: {action: hide}")
	unnamed := run(filepath.Join(dir, "b.txt"))
	stack.CheckCommand(t, unnamed, 2, unnamed.Stderr, "set --from to hosted-json or operator-yaml")
	broken := run(filepath.Join(dir, "c.yaml"))
	stack.CheckCommand(t, broken, 1, broken.Stderr, "error: version: is required")
	if broken.Stdout != "" {
		t.Errorf("a policy that can't be read is translated to %s", broken.Stdout)
	}
	asJSON := run(filepath.Join(dir, "a.json"), "-o", "json")
	stack.CheckCommand(t, asJSON, 0, asJSON.Stdout, `"document": "# Imported from `, `"findings": []`)
}
