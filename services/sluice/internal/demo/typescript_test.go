package demo_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/sluice/internal/demo"
)

func TestTypeScriptSDK_UsesTheDemoServer(t *testing.T) {
	t.Parallel()
	for name, json := range map[string]bool{"over event streams": false, "over JSON answers": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(c *demo.Config) { c.JSONResponse = json })
			client := npmtest.StartClient(t, serve(t, s), "")

			want := []string{
				demo.CreateNote, demo.DeleteNote, demo.GetNote, demo.ListAccounts, demo.ListNotes, demo.Refund, demo.RunReport,
			}
			if diff := cmp.Diff(want, client.ListTools().ToolNames(t)); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
			// After it has listed the tools, the client checks each result against the tool's output schema.
			for tool, args := range map[string]map[string]any{
				demo.ListNotes:    {"limit": 2},
				demo.GetNote:      {"id": "note-1"},
				demo.ListAccounts: {},
				demo.CreateNote:   {"title": "Tea"},
				demo.DeleteNote:   {"id": "note-2"},
				demo.Refund:       {"account": "ben", "amount": "0.01"},
				demo.RunReport:    {},
			} {
				if res := client.CallTool(npmtest.ToolCall{Name: tool, Arguments: args}).ToolResult(t); res.IsError {
					t.Errorf("%s(%v) failed: %s", tool, args, res.Text())
				}
			}
			if reply := client.CallTool(npmtest.ToolCall{Name: "nope"}); reply.Error == nil || reply.Error.Code != -32602 {
				t.Errorf("a tool that does not exist: %v", reply.Error)
			}
			if got := s.Stats(); got.Calls != 8 || got.Unknown != 1 {
				t.Errorf("%d calls, %d of them unknown; want 8, 1", got.Calls, got.Unknown)
			}
			report := client.CallTool(npmtest.ToolCall{Name: demo.RunReport, Progress: true})
			if message := report.Message(t); !regexp.MustCompile(`"fingerprint":[0-9]{16,20}[,}]`).MatchString(message) {
				t.Errorf("the fingerprint is no integer beyond 2^53: %s", message)
			}
		})
	}
}
