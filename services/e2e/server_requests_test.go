package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// echoSample responds to a sampling request with the text of the request.
//
//nolint:staticcheck // see connectInteractive
func echoSample(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	text, _ := r.Params.Messages[0].Content.(*mcp.TextContent)
	return &mcp.CreateMessageResult{Role: "assistant", Model: "m", Content: &mcp.TextContent{Text: "re: " + text.Text}}, nil
}

// connectInteractive connects a client of the official SDK that responds to server requests. heard receives a text for
// each elicitation and each notification of a changed list. The caller closes the client.
func connectInteractive(t *testing.T, over mcp.Transport) (c *mcp.ClientSession, heard <-chan string) {
	t.Helper()
	hears := make(chan string, 100)
	client := mcp.NewClient(&mcp.Implementation{Name: "attending", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: echoSample, //nolint:staticcheck // revision 2026-07-28 deprecates sampling, and earlier revisions have it
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			hears <- "asked " + r.Params.Message
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"username": "ana", "name": "ana"}}, nil
		},
		ToolListChangedHandler:   func(context.Context, *mcp.ToolListChangedRequest) { hears <- "tools changed" },
		PromptListChangedHandler: func(context.Context, *mcp.PromptListChangedRequest) { hears <- "prompts changed" },
	})
	c, err := client.Connect(t.Context(), over, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, hears
}

// streamingTransport returns an HTTP transport to an endpoint that also opens the stream for messages that belong to no
// request.
func streamingTransport(url string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearerRoundTripper{stack.AgentToken}}}
}

// stdioTransport returns a transport to a server of a mesh through `sluice stdio`, which is for clients that can only
// start programs.
func stdioTransport(t *testing.T, s *stack.Stack, server string) mcp.Transport {
	t.Helper()
	c := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "stdio", "--server", server)
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), "SLUICE_URL="+s.URL, "SLUICE_TOKEN="+stack.AgentToken)
	return &mcp.CommandTransport{Command: c}
}

// Checks that a server's requests that policy allows reach its client, over HTTP and stdio on both sides: sampling,
// elicitation and notifications of changed lists. Each server request is recorded as the server's.
func TestServerRequests_PermittedOnesReachTheClient(t *testing.T) {
	t.Parallel()
	program := buildEverythingServer(t)
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  web: {http: {url: %q}}\n  program: {stdio: {command: [%q]}}\n  quiet: {stdio: {command: [%q]}}", startEverythingServer(t, false), program, program),
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
		"web": {streamingTransport(s.MCP("web")), true}, "program": {streamingTransport(s.MCP("program")), false},
		"web, by a program": {stdioTransport(t, s, "web"), true},
	} {
		prompts := tt.prompts
		t.Run(name, func(t *testing.T) {
			c, heard := connectInteractive(t, tt.over)
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
			call(t, c, "test_trigger_prompt_change", "") // only clients that may use prompts are notified
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
		c, _ := connectInteractive(t, streamingTransport(s.MCP("quiet")))
		defer c.Close()
		if got := call(t, c, "test_sampling", "prompt=hello"); !strings.Contains(got, "No client takes this request here.") {
			t.Errorf("the result of the denied sampling is %q", got)
		}
	})
	t.Run("a request over the limit is refused", func(t *testing.T) {
		c, _ := connectInteractive(t, streamingTransport(s.MCP("web")))
		defer c.Close()
		call(t, c, "test_sampling", "prompt=again")
		if got := call(t, c, "test_sampling", "prompt=again"); !strings.Contains(got, "rate_limited, decision ") {
			t.Errorf("the result of the limited sampling is %q", got)
		}
	})
	told := make(map[string]int)
	for _, r := range listRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
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

// parseArgument returns the arguments of a call from the text `name=text`, or no arguments if the text has no "=".
func parseArgument(text string) map[string]any {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return map[string]any{}
	}
	return map[string]any{name: value}
}
