package approvals_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// sessionlessClients contains each official client that supports revision 2026-07-28. The function for a client
// connects the client, and returns a function that makes a payment and returns the result.
var sessionlessClients = map[string]func(t *testing.T, url string) func() (text string, isError bool){
	"Go SDK": func(t *testing.T, url string) func() (string, bool) {
		c, _ := gosdk.ConnectInteractive(t, gosdk.StreamingTransport(url))
		t.Cleanup(func() { _ = c.Close() }) // a call may still be in flight if the test has failed
		if v := c.InitializeResult().ProtocolVersion; v != "2026-07-28" {
			t.Fatalf("the client uses protocol version %s", v)
		}
		return func() (string, bool) {
			r, err := c.CallTool(context.WithoutCancel(t.Context()), &mcp.CallToolParams{Name: "pay", Arguments: map[string]any{"sum": 12.5}})
			if err != nil || len(r.Content) != 1 {
				return fmt.Sprint(r, err), true
			}
			text, _ := r.Content[0].(*mcp.TextContent)
			return text.Text, r.IsError
		}
	},
	"TypeScript SDK 2": func(t *testing.T, url string) func() (string, bool) {
		c := npmtest.NewClient(t, npm.TypeScriptSDK2)
		if reply := c.Negotiate(url, stack.AgentToken); reply.Error != nil {
			t.Fatal(reply.Error)
		}
		return func() (string, bool) {
			reply := c.CallTool(paymentCall())
			if reply.Error != nil {
				return reply.Error.Message, true
			}
			result := reply.ToolResult(t)
			return result.Text(), result.IsError
		}
	},
}

// A client without a session waits for an approver longer than the hold time, and receives the result without repeating
// the call. If no approver votes, the client receives a refusal that contains the approval's id (a ticket) before its
// own timeout.
func TestClients_WithoutSessionWaitBeyondTheHold(t *testing.T) {
	t.Parallel()
	for name, connect := range sessionlessClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 8s}") // the hold time leaves enough time for the vote on a busy machine
			pays := connect(t, f.MCP("raw"))
			type answer struct {
				text    string
				isError bool
			}
			answered := make(chan answer, 1)
			begin := func() time.Time {
				go func() {
					text, isError := pays()
					answered <- answer{text, isError}
				}()
				return time.Now()
			}
			w := &approvalCaller{Mesh: f}
			asked := begin()
			id := w.AwaitOnePending(t)
			<-time.After(time.Until(asked.Add(9 * time.Second))) // during the second round trip
			w.checkPayments(t, 0)
			w.decideApproval(t, "approve", id)
			if got := <-answered; got.isError || got.text != "ran" {
				t.Errorf("after the approval the result is %+v", got)
			}
			w.checkPayments(t, 1)
			asked = begin()
			got := <-answered
			if took := time.Since(asked); !got.isError || !strings.Contains(got.text, "a person must approve this call") || took < 24*time.Second {
				t.Errorf("without a decision, the result after %v is %+v", took, got)
			}
			w.decideApproval(t, "deny", w.AwaitOnePending(t), "-m", "too much")
			begin()
			if got := <-answered; !got.isError || !strings.Contains(got.text, "too much") {
				t.Errorf("after the denial the result is %+v", got)
			}
			w.checkPayments(t, 1)
		})
	}
}
