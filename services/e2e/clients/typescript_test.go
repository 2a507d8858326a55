package clients_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/e2e/story"
)

// The test does what a new user does first: it runs `sluice up` without a configuration and connects the official
// TypeScript SDK.
func TestTypeScriptSDK_WorksWithoutConfiguration(t *testing.T) {
	t.Parallel()
	p := stack.StartWithoutConfig(t)
	client := npmtest.StartClient(t, p.MCP("demo"), p.GeneratedToken(t, "agent"))

	want := []string{"create_note", "delete_note", "get_note", "list_notes", "refund", "run_report", "sluice_approval_wait"}
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(client.ListTools().ToolNames(t)))); diff != "" {
		t.Errorf("listed tools: all except list_accounts, which no rule names, and the tool that waits for approvals (-want +got):\n%s", diff)
	}
	if got := client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t); got.IsError || !strings.Contains(got.Text(), "Welcome") {
		t.Errorf("an allowed call gave %+v", got)
	}
	tests := []struct {
		name, tool, code, rule, text string
		args                         map[string]any
	}{
		{"denied with a reason", "delete_note", "denied_by_rule", "starter/tools.delete_note", "Denied by policy: notes are kept; ask a person to remove one", map[string]any{"id": "note-1"}},
		{"denied by default", "list_accounts", "denied_by_default", "", "Denied by policy: no rule allows this call.", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := client.CallTool(npmtest.ToolCall{Name: tt.tool, Arguments: tt.args}).ToolResult(t)
			d := stack.DecisionOf(t, got)
			if !got.IsError || got.Text() != tt.text || d.Code != tt.code || d.Rule != tt.rule || d.ID == "" {
				t.Errorf("got %+v, decision %+v", got, d)
			}
		})
	}
	if got := client.CallTool(npmtest.ToolCall{Name: "get_note", Arguments: map[string]any{"id": "note-1"}}).ToolResult(t); got.IsError {
		t.Errorf("the note whose deletion was denied: %s", got.Text())
	}
	if err := client.Request("resources/list", nil).Error; err == nil || err.Code != -31403 || !strings.Contains(string(err.Data), `"method_denied"`) {
		t.Errorf("a method that no rule names: %v", err)
	}
	if reply := client.Close(); reply.Error != nil {
		t.Errorf("ending the session: %v", reply.Error)
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

const demoPolicy = `version: 1
name: demo
server: demo
default: deny
tools:
  list_notes: {action: allow}
  create_note: {rate_limit: {max: 4, window: 6}}
  delete_note: {action: deny, reason: notes are kept}
`

func TestTypeScriptSDK_DeniedCallsNeverReachTheServer(t *testing.T) {
	t.Parallel()
	demo := startDemoServer(t)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: demo.entry(), Policy: demoPolicy}))
	client := npmtest.StartClient(t, p.MCP("demo"), stack.AgentToken)
	client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t)
	before := demo.stats(t)
	if before.Tools["list_notes"] != 1 || before.Calls != 1 {
		t.Fatalf("after one allowed call the server counts %+v", before)
	}
	for tool, code := range map[string]string{"delete_note": "denied_by_rule", "refund": "denied_by_default", "never_heard_of": "denied_by_default"} {
		if d := stack.DecisionOf(t, client.CallTool(npmtest.ToolCall{Name: tool, Arguments: map[string]any{"id": "note-1"}}).ToolResult(t)); d.Code != code {
			t.Errorf("%s: code %q, want %q", tool, d.Code, code)
		}
	}
	if after := demo.stats(t); after.Calls != before.Calls || after.Posts != before.Posts {
		t.Errorf("denied calls reached the server: %d calls and %d requests, before %d and %d", after.Calls, after.Posts, before.Calls, before.Posts)
	}
}

func TestTypeScriptSDK_RateLimitHolds(t *testing.T) {
	t.Parallel()
	demo := startDemoServer(t)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: demo.entry(), Policy: demoPolicy}))

	t.Run("the fifth call is refused, and passes at the time that the refusal names", func(t *testing.T) {
		t.Parallel()
		client := npmtest.StartClient(t, p.MCP("demo"), stack.AgentToken)
		note := npmtest.ToolCall{Name: "create_note", Arguments: map[string]any{"title": "one"}}
		for i := range 4 {
			if got := client.CallTool(note).ToolResult(t); got.IsError {
				t.Fatalf("call %d of 4 was refused: %s", i+1, got.Text())
			}
		}
		refused := client.CallTool(note).ToolResult(t)
		d := stack.DecisionOf(t, refused)
		if !refused.IsError || d.Code != "rate_limited" || !d.Retryable || d.RetryAfterMs <= 0 || d.RetryAfterMs > 6000 || d.SessionKey != "session" {
			t.Fatalf("the fifth call: %s, decision %+v", refused.Text(), d)
		}
		said := time.Now().Add(time.Duration(d.RetryAfterMs) * time.Millisecond)
		<-time.After(time.Until(said) / 2)
		if early := stack.DecisionOf(t, client.CallTool(note).ToolResult(t)); early.Code != "rate_limited" || early.RetryAfterMs >= d.RetryAfterMs {
			t.Errorf("before the time: %+v, the first response said %d ms", early, d.RetryAfterMs)
		}
		<-time.After(time.Until(said))
		if got := client.CallTool(note).ToolResult(t); got.IsError {
			t.Errorf("after the %d ms of the first response a call was refused: %s", d.RetryAfterMs, got.Text())
		}
	})
	t.Run("never more than 4 in any 6 s", func(t *testing.T) {
		t.Parallel()
		story.Limit{MCP: p.MCP("demo"), Token: stack.AgentToken, Decisions: func(t *testing.T) string {
			return stack.Run(t, stack.Command{
				Args: []string{"decisions", "tail", "-n", "10000", "--tool", story.LimitedTool, "--output", "json", "--addr", p.GRPC},
				Env:  []string{"SLUICE_TOKEN=" + stack.OperatorToken},
			}).Stdout
		}}.CallAtRandom(t, 30*time.Second)
	})
}

// The gateway does not change unknown JSON members or large numbers in lists, calls and results.
func TestTypeScriptSDK_ReceivesEveryByte(t *testing.T) {
	t.Parallel()
	const (
		list   = `[{"name":"odd", "inputSchema":{"type":"object","maximum":1e999},"xUnknown":{"n":9007199254740993,"\u0061":[ ]},"execution":{"taskSupport":"optional"},"_meta":{"x":1.50}}],"xUnknown":18446744073709551617,"ttl":-0.0`
		result = `{"content":[{"type":"text","text":"h\u00e9"},{"type":"text","text":"\/","xUnknown":0.10}],"structuredContent":{"n":18446744073709551615,"deep":[{"m":-9007199254740993}]},"xUnknown":[1e400, -0.0]}`
		args   = `{"n":9223372036854775807,"f":1.5,"deep":[{"n":-9007199254740993}]}`
	)
	up := rawmcp.Start(t, list)
	up.SetAnswer("odd", rawmcp.Result(result))
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: "version: 1\nname: open\ndefault: allow\n",
	})
	client := npmtest.StartClient(t, stack.Start(t, s).MCP("raw"), stack.AgentToken)
	if got := client.ListTools().Message(t); !strings.HasSuffix(got, `"result":{"tools":`+list+"}}") {
		t.Errorf("the client received the list\n%s\nwant the result\n{\"tools\":%s}", got, list)
	}
	reply := client.CallTool(npmtest.ToolCall{Name: "odd", Arguments: jsontext.Value(args)})
	if got := reply.Message(t); !strings.HasSuffix(got, `"result":`+result+"}") {
		t.Errorf("the client received the result\n%s\nwant\n%s", got, result)
	}
	calls := up.Calls("odd")
	if len(calls) != 1 {
		t.Fatalf("%d calls reached the server, want 1", len(calls))
	}
	if got := string(calls[0].Body); got != reply.HTTP[0].Sent || !strings.Contains(got, args) {
		t.Errorf("the client sent\n%s\nand the server received\n%s", reply.HTTP[0].Sent, got)
	}
}
