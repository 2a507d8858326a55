//go:build compose

package compose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/e2e/npmtest"
)

const approvalService = "sluice.approval.v1.ApprovalService"

// refundStories let a person approve a refund as deploy/README.md does: by the command
// line, and by grpcurl.
func refundStories(t *testing.T, d *deployment, calls *caller) {
	t.Run("by the command line", func(t *testing.T) {
		calls.refundOnce(t, "2.00", func(id string) {
			if got := d.cli(t, "approvals", "list"); !strings.Contains(got, id[:8]) {
				t.Errorf("%s is not in %s", id, got)
			}
			if got := d.cli(t, "approvals", "approve", "--yes", id, "--comment", "as agreed"); !strings.Contains(got, "approved") {
				t.Errorf("it said %s", got)
			}
		})
	})
	t.Run("by grpcurl", func(t *testing.T) {
		g := newGrpcurl(t, d)
		approval := d.addr("APPROVAL_PORT")
		calls.refundOnce(t, "3.00", func(id string) {
			seen, err := g.ask(t, d.operator, "-d", fmt.Sprintf(`{"approval_id": %q, "view": true}`, id), approval, approvalService+"/Get")
			var shown struct {
				View struct {
					Digest     string `json:"digest"`
					ParamsJSON string `json:"paramsJson"`
				} `json:"view"`
			}
			if err == nil {
				err = json.Unmarshal([]byte(seen), &shown)
			}
			if err != nil || shown.View.Digest == "" || !strings.Contains(seen, "3.00") {
				t.Fatalf("the view is %s, %v", seen, err)
			}
			vote := fmt.Sprintf(`{"approval_id": %q, "verdict": "VERDICT_APPROVE", "view_digest": %q}`, id, shown.View.Digest)
			if got, err := g.ask(t, d.agent, "-d", vote, approval, approvalService+"/Decide"); err == nil {
				t.Errorf("the agent's vote was taken: %s", got)
			}
			if got, err := g.ask(t, d.operator, "-d", vote, approval, approvalService+"/Decide"); err != nil || !strings.Contains(got, "APPROVAL_STATE_APPROVED") {
				t.Errorf("the vote came to %s, %v", got, err)
			}
		})
	})
}

// refundOnce asks for a refund, lets it be approved, and calls twice: the first runs it,
// the second asks anew.
func (c *caller) refundOnce(t *testing.T, amount string, approve func(id string)) {
	t.Helper()
	refund := func() npmtest.ToolResult {
		return c.client.CallTool(npmtest.ToolCall{Name: "refund", Arguments: map[string]any{"account": "ana", "amount": amount}}).ToolResult(t)
	}
	before := c.reached(t)
	asked := refund()
	var ticket struct {
		Approval struct {
			ID string `json:"id"`
		} `json:"approval"`
	}
	if err := json.Unmarshal(asked.Meta["dev.sluice/decision"], &ticket); err != nil || ticket.Approval.ID == "" || !asked.IsError {
		t.Fatalf("asked, and got %+v, %v", asked, err)
	}
	approve(ticket.Approval.ID)
	if ran := refund(); ran.IsError {
		t.Fatalf("approved, and refused: %s", ran.Text())
	}
	if again := refund(); decisionOf(t, again).Code != "approval_pending" {
		t.Errorf("a second one: %s", again.Text())
	}
	if n := c.reached(t)["refund"] - before["refund"]; n != 1 {
		t.Errorf("%d refunds reached the server, want 1", n)
	}
}
