package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const conditionsPolicy = `version: 1
name: files
default: deny
tools:
  read: {action: allow}
  write_file:
    action: allow
    when: path.within(args.path, "/srv/docs")
    otherwise: {action: deny, reason: only below docs}
  lend: {action: allow, when: args.days < 30}
  never: {action: deny, when: args.path == "/x", otherwise: {action: deny}}
rules:
  - {name: people-refund-much, match: {tool: refund}, when: decimal(args.amount) > 100, action: require_approval}
  - {name: refund-little, match: {tool: refund}, when: decimal(args.amount) <= 100, action: allow}
`

const conditionsTools = `[{"name":"read","inputSchema":{"type":"object"}},
{"name":"write_file","inputSchema":{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}}}},
{"name":"never","inputSchema":{"type":"object"}},
{"name":"lend","inputSchema":{"type":"object","properties":{"days":{"type":"integer"}}}},
{"name":"refund","inputSchema":{"type":"object","properties":{"amount":{"type":"number"}}}}]`

// TestConditions_DecideByArguments checks that the server receives only the calls whose arguments meet the conditions
// of the policy. A caller whose call is refused receives the argument's name and the reason. `policy explain` prints
// the values of the conditions.
func TestConditions_DecideByArguments(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, conditionsTools)
	m := &rawmesh.Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: conditionsPolicy,
	})}
	c := m.Connect(t)
	if listed := string(c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body); !strings.Contains(listed, "write_file") || strings.Contains(listed, "never") {
		t.Errorf("the listed tools are %s", listed)
	}
	for _, tt := range []struct {
		tool, arguments string
		want            []string // parts of the response; "ran" if the server received the call
	}{
		{"read", `{"any":"thing"}`, []string{"ran"}},
		{"write_file", `{"path":"/srv/docs/a.md","content":"x"}`, []string{"ran"}},
		{"write_file", `{"path":"/srv/docs/../../etc/passwd"}`, []string{`"code":"denied_by_rule"`, "only below docs"}},
		{"write_file", `{"content":"x"}`, []string{`"code":"type_error"`, "args.path is missing", "only below docs"}},
		{"write_file", `{"path":7}`, []string{`"code":"type_error"`, "args.path, which is 7"}},
		{"write_file", `{"path":"/srv/docs/a","PATH":"/etc/passwd"}`, []string{`"code":"type_error"`, `PATH`}},
		{"write_file", `{"path":"/srv/docs/a","mode":"0777"}`, []string{`"code":"type_error"`, `the tool's schema has no argument`}},
		{"refund", `{"amount":99.99}`, []string{"ran"}},
	} {
		before := len(up.Calls(tt.tool))
		body := string(c.Call(tt.tool, tt.arguments).Body)
		for _, part := range tt.want {
			if !strings.Contains(body, part) {
				t.Errorf("%s %s: the response is %s\nwant %s", tt.tool, tt.arguments, body, part)
			}
		}
		if ran := len(up.Calls(tt.tool)) > before; ran != (tt.want[0] == "ran") {
			t.Errorf("%s %s: the server received the call: %t", tt.tool, tt.arguments, ran)
		}
	}
	for _, tt := range []struct{ tool, arg, want string }{
		{"refund", "amount=250", "condition of files/people-refund-much: true: args.amount is 250; would be false if decimal(args.amount) > 100 were false"},
		{"write_file", "path=/x", `condition of files/tools.write_file.otherwise: false: args.path is the string "/x"; would be true if path.within(args.path, "/srv/docs") were true`},
		{"lend", "days=40", "condition of files/tools.lend: false: args.days is 40; would be true if args.days < 30 were true"}, // the default refuses
	} {
		explain := stack.Run(t, stack.Command{
			Args: []string{"policy", "explain", "--addr", m.GRPC, "--server", "raw", "--tool", tt.tool, "--arg", tt.arg},
			Env:  []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
		stack.CheckCommand(t, explain, 0, explain.Stdout, tt.want)
	}
}
