package catalog_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// One rule for all destructive tools applies to three real servers. Destructive tools need approval, other tools run
// without one, and an approved call runs once.
func TestToolClasses_OneRuleCoversAllDestructiveTools(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: strings.Join([]string{
			stack.ClaudeFlowEntry(t), stack.StdioEntry(t, "files", npmtest.ServerFilesystem(t, ".")), stack.StdioEntry(t, "memory", npmtest.ServerMemory(t)),
		}, "\n"),
		Policy: classPolicy, Extra: "approvals: {hold: 0s}", GRPC: stack.FreeAddr(t),
	}))
	f := &rawmesh.Mesh{Stack: p.Stack}
	counts := map[string]map[string]int{}
	for _, tc := range []struct {
		server, runs, with, asks, asksWith string
	}{
		{"claude-flow", "wasm_gallery_list", "{}", "memory_delete", `{"key":"k"}`},
		{"files", "list_allowed_directories", "{}", "write_file", `{"path":"new.txt","content":"x"}`},
		{"memory", "read_graph", "{}", "delete_entities", `{"entityNames":["nobody"]}`},
	} {
		c := npmtest.StartClient(t, p.MCP(tc.server), stack.AgentToken)
		call := func(tool, with string) npmtest.ToolResult {
			t.Helper()
			var arguments map[string]any
			if err := json.Unmarshal([]byte(with), &arguments); err != nil {
				t.Fatal(err)
			}
			return c.CallTool(npmtest.ToolCall{Name: tool, Arguments: arguments}).ToolResult(t)
		}
		if got := call(tc.runs, tc.with); got.IsError {
			t.Errorf("%s %s: %+v", tc.server, tc.runs, got)
		}
		asking := toolsInCategories(t, f, tc.server, "destructive", "financial")
		running := toolsInCategories(t, f, tc.server, "read", "write", "execute")
		counts[tc.server] = map[string]int{"ask": len(asking), "run": len(running)}
		if !slices.Contains(asking, tc.asks) {
			t.Logf("%s: the tools that need approval: %q", tc.server, asking)
			t.Errorf("%s: %s does not need approval", tc.server, tc.asks)
			continue
		}
		for _, tool := range asking {
			if d := stack.DecisionOf(t, call(tool, `{"__none":1}`)); d.Code != "approval_pending" && d.Code != "too_many_pending" {
				t.Errorf("%s %s: %+v", tc.server, tool, d)
			}
		}
		denyPending(t, f)
		if d := stack.DecisionOf(t, call(tc.asks, tc.asksWith)); d.Code != "approval_pending" {
			t.Fatalf("%s %s: %+v", tc.server, tc.asks, d)
		}
		id := f.AwaitOnePending(t)
		shown := f.RunApprovalsJSON(t, "show", id, "-o", "table")
		stack.CheckCommand(t, shown, 0, shown.Stdout, "destructive, risk critical")
		if ran := f.RunApprovalsJSON(t, "approve", id, "--yes"); ran.Code != 0 {
			t.Fatalf("%+v", ran)
		}
		if got := call(tc.asks, tc.asksWith); strings.Contains(got.Text(), "approv") {
			t.Errorf("%s %s, approved: %+v", tc.server, tc.asks, got)
		}
		if d := stack.DecisionOf(t, call(tc.asks, tc.asksWith)); d.Code != "approval_pending" {
			t.Errorf("%s %s, the same call after it ran: %+v", tc.server, tc.asks, d)
		}
		denyPending(t, f)
	}
	t.Log(fmt.Sprint(counts))
}

// toolsInCategories returns the names of the server's tools in these catalog categories.
func toolsInCategories(t *testing.T, f *rawmesh.Mesh, server string, categories ...string) []string {
	t.Helper()
	ran := stack.Run(t, stack.Command{
		Args: []string{"catalog", "list", server, "--addr", f.GRPC, "-o", "json", "--category", strings.Join(categories, ",")}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken},
	})
	var page struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal([]byte(ran.Stdout), &page); err != nil || ran.Code != 0 {
		t.Fatalf("%v: %+v", err, ran)
	}
	var names []string
	for _, one := range page.Tools {
		names = append(names, one.Name)
	}
	return names
}

func denyPending(t *testing.T, f *rawmesh.Mesh) {
	t.Helper()
	for _, w := range f.ListApprovals(t) {
		if w.State == "pending" {
			if ran := f.RunApprovalsJSON(t, "deny", w.ID, "--yes"); ran.Code != 0 {
				t.Fatalf("%+v", ran)
			}
		}
	}
}
