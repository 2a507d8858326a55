package clients_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A client of a revision that uses sessions opens a session with a stateless server. If the policy allows it, the input
// requests in the server's results reach the client as requests, and the client's responses reach the server. The
// client's stream delivers the notifications of changed lists.
func TestBridge_SessionClientUsesSessionlessServer(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  bare: {http: {url: %q}}", gosdk.SessionlessOnlyProxy(t, gosdk.StartServer(t, true))),
		Policy: `version: 1
default: allow
rules:
  - {name: elicit, match: {method: elicitation/create}, action: allow}
  - {name: subscribe, match: {method: "resources/*"}, action: allow}
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, path := range map[string]string{"at its own URL": s.MCP("bare"), "at that of all": s.AllServers()} {
		t.Run(name, func(t *testing.T) {
			prefix := ""
			if path == s.AllServers() {
				prefix = "bare__"
			}
			c, heard := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(gosdk.SessionsOnlyProxy(t, path)))
			defer c.Close()
			if v := c.InitializeResult().ProtocolVersion; v != "2025-11-25" {
				t.Fatalf("the session has protocol version %s", v)
			}
			call := func(tool string) *mcp.CallToolResult {
				t.Helper()
				r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + tool})
				if err != nil {
					t.Fatalf("call %s: %v", tool, err)
				}
				return r
			}
			text := func(r *mcp.CallToolResult) string {
				t.Helper()
				content, _ := r.Content[0].(*mcp.TextContent)
				return content.Text
			}
			if got := text(call("test_input_required_result_elicitation")); !strings.Contains(got, "ana") {
				t.Errorf("the result after the elicitation is %q", got)
			}
			for got := ""; !strings.HasPrefix(got, "asked "); { // the client is also notified of changed lists
				select {
				case got = <-heard:
				case <-ctx.Done():
					t.Fatal("the client was not asked")
				}
			}
			if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + "test_input_required_result_sampling"}); err == nil {
				t.Error("the client received a request that policy denies")
			}
			call("test_trigger_tool_change")
			call("test_trigger_prompt_change")
			for want := map[string]bool{"tools changed": true, "prompts changed": true}; len(want) > 0; {
				select {
				case got := <-heard:
					delete(want, got)
				case <-ctx.Done():
					t.Fatalf("the client did not receive %v", want)
				}
			}
		})
	}
	told := make(map[string]int)
	for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if r.GetTool() == "test_input_required_result_elicitation" || r.GetFromServer() {
			told[fmt.Sprintf("%s %s %s", r.GetKind(), r.GetMethod(), r.GetResult())]++
		}
	}
	want := map[string]int{ // one call for each tool, however many round trips it takes
		"RECORD_KIND_INTENT tools/call RESULT_CLASS_UNSPECIFIED":              2,
		"RECORD_KIND_OUTCOME tools/call RESULT_CLASS_OK":                      2,
		"RECORD_KIND_INTENT elicitation/create RESULT_CLASS_UNSPECIFIED":      2,
		"RECORD_KIND_OUTCOME elicitation/create RESULT_CLASS_OK":              2,
		"RECORD_KIND_REFUSAL sampling/createMessage RESULT_CLASS_UNSPECIFIED": 2,
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}
