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

// `policy explain --draft` shows how a draft policy would evaluate a call. The active documents stay in force. If the
// draft does not load, the command reports the position of the error.
func TestExplain_DraftDecidesInsteadOfTheActiveDocuments(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "pay"))
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: "version: 1\nname: team\ndefault: deny\n"})
	p := stack.Start(t, s)
	draft := stack.WriteFolder(t, map[string]string{
		"a.yaml": "version: 1\nname: a\nserver: raw\ntools:\n  read: {action: allow}\n",
		"b.yaml": "version: 1\nname: b\ndefault: deny\nrules:\n  - {name: small, match: {tool: pay}, when: args.amount <= 5, action: allow}\n",
	})
	broken := stack.WriteFolder(t, map[string]string{"broken.yaml": "version: 1\ndefault: alow\n"})
	explain := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: append([]string{"policy", "explain", "--server", "raw", "--addr", p.GRPC}, args...), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
	}
	var read stack.CommandResult
	eventually.Holds(t, "the tools are in the catalog", func() bool {
		read = explain("--tool", "read", "--draft", draft)
		return !strings.Contains(read.Stdout, "tool_unknown")
	})
	stack.CheckCommand(t, read, 0, read.Stdout, "allow", "a/tools.read")
	small := explain("--tool", "pay", "--arg", "amount=3", "--draft", filepath.Join(draft, "a.yaml"), "--draft", filepath.Join(draft, "b.yaml"))
	stack.CheckCommand(t, small, 0, small.Stdout, "allow", "b/small", "args.amount is 3")
	large := explain("--tool", "pay", "--arg", "amount=9", "--draft", draft)
	stack.CheckCommand(t, large, 0, large.Stdout, "deny  denied_by_default")
	active := explain("--tool", "read")
	stack.CheckCommand(t, active, 0, active.Stdout, "deny  denied_by_default")
	failed := explain("--tool", "read", "--draft", broken)
	stack.CheckCommand(t, failed, 1, failed.Stdout, "broken.yaml:2:", "alow")
}
