//go:build compose

package compose_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

const approvalService = "sluice.approval.v1.ApprovalService"

// refundStories approves refunds as deploy/README.md describes: with the command line and with grpcurl.
func refundStories(t *testing.T, d *deployment, calls *caller) {
	g := newGrpcurl(t, d)
	t.Run("by the command line", func(t *testing.T) {
		ran := calls.refundOnce(t, "2.00", func(id string) {
			if got := d.cli(t, "approvals", "list"); !strings.Contains(got, id[:8]) {
				t.Errorf("%s is not in %s", id, got)
			}
			if got := d.cli(t, "approvals", "approve", "--yes", id, "--comment", "as agreed"); !strings.Contains(got, "approved") {
				t.Errorf("the command prints %s", got)
			}
		})
		record := g.intentOf(t, ran)
		if len(record.Votes) != 1 || record.Votes[0].Subject != "operator" || record.Votes[0].Comment != "as agreed" {
			t.Errorf("the votes in the record of the call are %+v", record.Votes)
		}
	})
	t.Run("by grpcurl", func(t *testing.T) {
		approval := d.addr("APPROVAL_PORT")
		calls.refundOnce(t, "3.00", func(id string) {
			seen, err := g.ask(t, d.operator, "-d", fmt.Sprintf(`{"approval_id": %q, "view": true}`, id), approval, approvalService+"/GetApproval")
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
			if got, err := g.ask(t, d.agent, "-d", vote, approval, approvalService+"/DecideApproval"); err == nil {
				t.Errorf("the agent's vote was accepted: %s", got)
			}
			if got, err := g.ask(t, d.operator, "-d", vote, approval, approvalService+"/DecideApproval"); err != nil || !strings.Contains(got, "APPROVAL_STATE_APPROVED") {
				t.Errorf("the response to the vote is %s, %v", got, err)
			}
		})
	})
}

// approvedCall contains the fields that the tests read from the intent record of an approved call.
type approvedCall struct {
	ApprovalID string `json:"approvalId"`
	TraceID    string `json:"traceId"`
	Votes      []struct {
		Subject string `json:"subject"`
		Comment string `json:"comment"`
	} `json:"votes"`
}

// intentOf returns the intent record of the call that ran under the given approval.
func (g *grpcurl) intentOf(t *testing.T, approval string) approvedCall {
	t.Helper()
	got, err := g.ask(t, g.d.operator, "-d", `{"filter": {"tool": "refund", "kinds": ["RECORD_KIND_INTENT"]}}`,
		g.d.addr("GATEWAY_PORT"), "sluice.gateway.v1.GatewayService/ListDecisions")
	var list struct {
		Records []approvedCall `json:"records"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(got), &list)
	}
	for _, record := range list.Records {
		if record.ApprovalID == approval {
			return record
		}
	}
	t.Fatalf("no intent names the approval %s: %s, %v", approval, got, err)
	return approvedCall{}
}

// refundOnce requests a refund, calls the function approve with the approval's id, and then requests the same refund
// twice. The first of these two requests runs, and the second needs another approval. refundOnce returns the id of the
// first approval.
func (c *caller) refundOnce(t *testing.T, amount string, approve func(id string)) string {
	t.Helper()
	refund := func() npmtest.ToolResult {
		return c.client.CallTool(npmtest.ToolCall{Name: "refund", Arguments: map[string]any{"account": "ana", "amount": amount}}).ToolResult(t)
	}
	before := c.countReceived(t)
	asked := refund()
	var ticket struct {
		Approval struct {
			ID string `json:"id"`
		} `json:"approval"`
	}
	if err := json.Unmarshal(asked.Meta["dev.sluice/decision"], &ticket); err != nil || ticket.Approval.ID == "" || !asked.IsError {
		t.Fatalf("the ticket is %+v, %v", asked, err)
	}
	approve(ticket.Approval.ID)
	if ran := refund(); ran.IsError {
		t.Fatalf("after the approval the refund is refused: %s", ran.Text())
	}
	if again := refund(); decisionOf(t, again).Code != "approval_pending" {
		t.Errorf("the second refund: %s", again.Text())
	}
	if n := c.countReceived(t)["refund"] - before["refund"]; n != 1 {
		t.Errorf("%d refunds reached the server, want 1", n)
	}
	return ticket.Approval.ID
}
