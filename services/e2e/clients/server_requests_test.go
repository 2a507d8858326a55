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

// If the policy allows a request from a server, the request reaches the client. This is tested for sampling,
// elicitation and notifications of changed lists, with HTTP and stdio both between client and mesh and between mesh and
// server. The records contain the server as the sender of each request.
func TestServerRequests_PermittedOnesReachTheClient(t *testing.T) {
	t.Parallel()
	program := gosdk.BuildServer(t)
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  web: {http: {url: %q}}\n  program: {stdio: {command: [%q]}}\n  quiet: {stdio: {command: [%q]}}", gosdk.StartServer(t, false), program, program),
		Policy: `version: 1
default: allow
rules:
  - {name: elicit, match: {method: "elicitation/*"}, action: allow}
  - {name: sample, match: {method: sampling/createMessage, server: [web, program]}, action: allow, rate_limit: {max: 4, window: 1h, per: [principal]}}
  - {name: prompts, match: {method: "prompts/*", server: web}, action: allow}
`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call := func(t *testing.T, c *mcp.ClientSession, tool, args string) string {
		t.Helper()
		r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: parseArgument(args)})
		if err != nil {
			t.Fatalf("call %s: %v", tool, err)
		}
		text, _ := r.Content[0].(*mcp.TextContent)
		return text.Text
	}
	for name, tt := range map[string]struct {
		over    mcp.Transport
		prompts bool
	}{
		"web": {gosdk.StreamingTransport(s.MCP("web")), true}, "program": {gosdk.StreamingTransport(s.MCP("program")), false},
		"web, by a program": {gosdk.StdioTransport(t, s, "web"), true},
	} {
		prompts := tt.prompts
		t.Run(name, func(t *testing.T) {
			c, heard := gosdk.ConnectInteractive(t, tt.over)
			defer func() {
				if err := c.Close(); err != nil {
					t.Errorf("end the session: %v", err)
				}
			}()
			if got := call(t, c, "test_sampling", "prompt=hello"); !strings.Contains(got, "re: hello") {
				t.Errorf("the result after the sampling is %q", got)
			}
			if got := call(t, c, "test_elicitation", "message=who?"); !strings.Contains(got, "ana") || <-heard != "asked who?" {
				t.Errorf("the result after the elicitation is %q", got)
			}
			call(t, c, "test_trigger_prompt_change", "") // only clients that may use prompts receive the notification
			call(t, c, "test_trigger_tool_change", "")
			want := map[string]bool{"tools changed": true, "prompts changed": prompts}
			for len(want) > 0 {
				select {
				case got := <-heard:
					if !want[got] {
						t.Errorf("the client received %q", got)
					}
					if delete(want, got); got == "tools changed" && !prompts {
						clear(want)
					}
				case <-ctx.Done():
					t.Fatalf("the client did not receive %v", want)
				}
			}
		})
	}
	t.Run("a denied request is not sent", func(t *testing.T) {
		c, _ := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(s.MCP("quiet")))
		defer c.Close()
		if got := call(t, c, "test_sampling", "prompt=hello"); !strings.Contains(got, "No client accepts this request here.") {
			t.Errorf("the result of the denied sampling is %q", got)
		}
	})
	t.Run("a request over the limit is refused", func(t *testing.T) {
		c, _ := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(s.MCP("web")))
		defer c.Close()
		call(t, c, "test_sampling", "prompt=again")
		if got := call(t, c, "test_sampling", "prompt=again"); !strings.Contains(got, "rate_limited, decision ") {
			t.Errorf("the result of the limited sampling is %q", got)
		}
	})
	told := make(map[string]int)
	for _, r := range stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if r.GetFromServer() {
			told[strings.TrimSpace(fmt.Sprintf("%s %s %s %s %s", r.GetKind(), r.GetServer(), r.GetMethod(), r.GetRule().GetRule(), r.GetResult()))]++
		}
	}
	want := map[string]int{
		"RECORD_KIND_INTENT web sampling/createMessage sample RESULT_CLASS_UNSPECIFIED":     3,
		"RECORD_KIND_OUTCOME web sampling/createMessage  RESULT_CLASS_OK":                   3,
		"RECORD_KIND_REFUSAL quiet sampling/createMessage  RESULT_CLASS_UNSPECIFIED":        1,
		"RECORD_KIND_REFUSAL web sampling/createMessage sample RESULT_CLASS_UNSPECIFIED":    1,
		"RECORD_KIND_INTENT web elicitation/create elicit RESULT_CLASS_UNSPECIFIED":         2,
		"RECORD_KIND_OUTCOME web elicitation/create  RESULT_CLASS_OK":                       2,
		"RECORD_KIND_INTENT program sampling/createMessage sample RESULT_CLASS_UNSPECIFIED": 1,
		"RECORD_KIND_OUTCOME program sampling/createMessage  RESULT_CLASS_OK":               1,
		"RECORD_KIND_INTENT program elicitation/create elicit RESULT_CLASS_UNSPECIFIED":     1,
		"RECORD_KIND_OUTCOME program elicitation/create  RESULT_CLASS_OK":                   1,
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("records of server requests (-want +got):\n%s", diff)
	}
}

// parseArgument returns the call arguments from a string `name=value`, or no arguments if the string has no "=".
func parseArgument(text string) map[string]any {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return map[string]any{}
	}
	return map[string]any{name: value}
}
