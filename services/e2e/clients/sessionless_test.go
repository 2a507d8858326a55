package clients_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The client and the server both use revision 2026-07-28. The client lists what the policy allows it to see, answers
// the server's input requests if the policy allows them, and receives the permitted notifications on a subscription.
// Each request from the server is recorded.
func TestSessionless_ClientAndServer(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  bare: {http: {url: %q}}", gosdk.StartServer(t, true)), Policy: `version: 1
default: allow
rules:
  - {name: no-errors, match: {tool: test_error_handling}, action: deny}
  - {name: elicit, match: {method: elicitation/create}, action: allow}
`})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, heard := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(s.MCP("bare")))
	defer func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
	}()
	if got := c.InitializeResult(); got.ProtocolVersion != "2026-07-28" || got.Capabilities.Prompts != nil || got.Capabilities.Tools == nil {
		t.Errorf("the protocol version is %s, the capabilities are %+v", got.ProtocolVersion, got.Capabilities)
	}
	list, err := c.ListTools(ctx, nil)
	if err != nil || len(list.Tools) < 20 {
		t.Fatalf("the listed tools are %v, %v", list, err)
	}
	for _, tool := range list.Tools {
		if tool.Name == "test_error_handling" {
			t.Error("a denied tool is listed")
		}
	}
	call := func(tool string, args map[string]any) string {
		t.Helper()
		r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			return err.Error()
		}
		text, _ := r.Content[0].(*mcp.TextContent)
		return text.Text
	}
	if got := call("test_input_required_result_elicitation", map[string]any{}); !strings.Contains(got, "ana") {
		t.Errorf("the result after the elicitation is %q", got)
	}
	if got := <-heard; !strings.HasPrefix(got, "asked ") {
		t.Errorf("the client received %q", got)
	}
	if got := call("test_input_required_result_sampling", map[string]any{}); !strings.Contains(got, "a request for the client that is not allowed (method_denied)") {
		t.Errorf("the result of the denied sampling is %q", got)
	}
	if got := call("test_x_mcp_header", map[string]any{"region": "eu-ü", "query": "q"}); strings.Contains(got, "mismatch") {
		t.Errorf("an argument in a header: %q", got)
	}
	if got := call("test_error_handling", map[string]any{}); !strings.Contains(got, "Denied by policy") {
		t.Errorf("a denied call has the result %q", got)
	}
	call("test_trigger_prompt_change", map[string]any{})
	call("test_trigger_tool_change", map[string]any{})
	select {
	case got := <-heard:
		if got != "tools changed" {
			t.Errorf("the client received %q", got)
		}
	case <-ctx.Done():
		t.Error("the client received no notification of changed tools")
	}
	told := make(map[string]int)
	for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if r.GetFromServer() {
			told[strings.TrimSpace(fmt.Sprintf("%s %s %s", r.GetKind(), r.GetMethod(), r.GetRule().GetRule()))]++
		}
	}
	want := map[string]int{
		"RECORD_KIND_INTENT elicitation/create elicit": 1, "RECORD_KIND_OUTCOME elicitation/create": 1,
		"RECORD_KIND_REFUSAL sampling/createMessage": 1,
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("records of the server's requests (-want +got):\n%s", diff)
	}
}

// Version 2 of the official TypeScript SDK works without a session. It first requests the supported revisions. Then it
// lists and calls tools, reads a resource, and receives a refusal as an error.
func TestSessionless_TypeScriptClient(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  bare: {http: {url: %q}}", gosdk.StartServer(t, true)), Policy: `version: 1
default: allow
rules:
  - {name: no-errors, match: {tool: test_error_handling}, action: deny}
  - {name: resources, match: {method: "resources/*"}, action: allow}
`})
	c := npmtest.NewClient(t, npm.TypeScriptSDK2)
	var session struct {
		ProtocolVersion string `json:"protocolVersion"`
		SessionID       string `json:"sessionId"`
	}
	reply := c.Negotiate(s.MCP("bare"), stack.AgentToken)
	if reply.Into(t, &session); session.ProtocolVersion != "2026-07-28" || session.SessionID != "" || len(reply.HTTP) != 1 {
		t.Fatalf("the session is %+v, after %d requests", session, len(reply.HTTP))
	}
	if names := c.ListTools().ToolNames(t); len(names) < 20 || slices.Contains(names, "test_error_handling") {
		t.Errorf("the listed tools are %q", names)
	}
	if got := c.CallTool(npmtest.ToolCall{Name: "test_simple_text"}).ToolResult(t); got.IsError || got.Text() == "" {
		t.Errorf("a call: %+v", got)
	}
	if got := c.CallTool(npmtest.ToolCall{Name: "test_error_handling"}).ToolResult(t); !got.IsError || !strings.Contains(got.Text(), "Denied by policy") {
		t.Errorf("a denied call: %+v", got)
	}
	if got := c.Request("resources/read", map[string]any{"uri": "test://static-text"}); got.Error != nil {
		t.Errorf("a resource: %v", got.Error)
	}
	if got := c.Request("prompts/list", nil); got.Error == nil || got.Error.Code != -31403 {
		t.Errorf("a method that no rule allows: %+v", got)
	}
}
