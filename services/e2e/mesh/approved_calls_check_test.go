package mesh_test

import (
	"encoding/json"
	"slices"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// checkResults compares the responses that the callers and the approver received, and the calls that ran, with the
// stored state. It must be called after the callers and the approver have finished.
func (p *paymentRun) checkResults(t *testing.T) {
	t.Helper()
	client := p.approvalClient(t)
	p.awaitNoClaims(t, client)
	ran := p.countReceived(t)
	for n, times := range ran {
		if times > 1 || p.decided[n] == "" {
			t.Errorf("call %d ran %d times; approved: %q", n, times, p.decided[n])
		}
	}
	for id := range p.known {
		p.checkStored(t, client, id)
	}
	for n, id := range p.decided {
		a := getApproval(t, client, id)
		switch state := a.GetState(); {
		case state == approvalv1.ApprovalState_APPROVAL_STATE_DONE && ran[n] == 1:
		case state == approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN && p.intended[id]:
		default:
			t.Errorf("the approval of call %d is %v, and the call ran %d times; interrupted after its intent: %t", n, state, ran[n], p.intended[id])
		}
	}
	p.calls.readNewRecords(t)
	p.refusals.readNewRecords(t)
	for _, whole := range []*hashChain{newHashChain(p.meshConfig.Journal(), "calls"), newHashChain(p.meshConfig.Journal(), "refusals")} {
		whole.readNewRecords(t)
	}
}

// approvalClient returns an approval client with the operator's token. The connection is closed when the test ends.
func (p *paymentRun) approvalClient(t *testing.T) approvalv1.ApprovalServiceClient {
	t.Helper()
	conn, err := p.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return approvalv1.NewApprovalServiceClient(conn)
}

// checkStored checks that an approval whose id was received is stored with the verdict that was acknowledged.
func (p *paymentRun) checkStored(t *testing.T, client approvalv1.ApprovalServiceClient, id string) {
	t.Helper()
	a := getApproval(t, client, id)
	verdict, decided := p.verdicts[id]
	voted := slices.ContainsFunc(a.GetVotes(), func(v *approvalv1.Vote) bool { return v.GetVerdict() == verdict && v.GetSubject() == "operator" })
	if decided && !voted {
		t.Errorf("the acknowledged %v on approval %s is lost: the approval is %v", verdict, id, a)
	}
	if denied := a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_DENIED; decided && denied != (verdict == approvalv1.Verdict_VERDICT_DENY) {
		t.Errorf("approval %s is %v after an acknowledged %v", id, a.GetState(), verdict)
	}
}

func getApproval(t *testing.T, client approvalv1.ApprovalServiceClient, id string) *approvalv1.Approval {
	t.Helper()
	resp, err := client.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		t.Errorf("the reported approval %s: %v", id, err)
	}
	return resp.GetApproval()
}

// awaitNoClaims waits until no approval is claimed.
func (p *paymentRun) awaitNoClaims(t *testing.T, client approvalv1.ApprovalServiceClient) {
	t.Helper()
	for ctx := stack.TimeoutContext(t); ; pausePolling(ctx) {
		list, err := client.ListApprovals(ctx, &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED}}})
		if err == nil && len(list.GetApprovals()) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("approvals are still claimed: %v, %v", list.GetApprovals(), err)
		}
	}
}

// countReceived returns the number of times that the server received each call, by the call's number.
func (p *paymentRun) countReceived(t *testing.T) map[int]int {
	t.Helper()
	ran := make(map[int]int)
	for _, r := range p.upstream.Calls("pay") {
		var m struct {
			Params struct{ Arguments struct{ N int } }
		}
		if err := json.Unmarshal(r.Body, &m); err != nil {
			t.Fatal(err)
		}
		ran[m.Params.Arguments.N]++
	}
	return ran
}
