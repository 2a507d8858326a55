package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// exitPending is the exit code of `policy apply` and `policy rollback` if other people must approve the change first.
const exitPending = 3

// pendingChange is a change to the policy that other people must approve.
type pendingChange struct {
	ID       string    `json:"id"`
	Approval string    `json:"approval"`
	Missing  int       `json:"missing"`
	Until    time.Time `json:"until"`
}

// pendingOf returns the pending change in an error from ApplyDocuments. The second result is false if there is none.
func pendingOf(err error) (p pendingChange, ok bool) {
	if rpc.Reason(err) != "POLICY_CHANGE_PENDING" {
		return pendingChange{}, false
	}
	facts := rpc.Facts(err)
	missing, err1 := strconv.Atoi(facts["missing"])
	until, err2 := time.Parse(time.RFC3339, facts["until"])
	p = pendingChange{ID: facts["documents"], Approval: facts["approval"], Missing: missing, Until: until.Local()}
	return p, p.Approval != "" && errors.Join(err1, err2) == nil
}

// sendChange applies documents and prints the result. If other people must approve the documents first, it waits for
// the approval if wait is true, and otherwise returns an error with the exit code 3.
func (t *tool) sendChange(ctx context.Context, client policyv1.PolicyServiceClient, wait bool, req *policyv1.ApplyDocumentsRequest) error {
	for {
		resp, err := t.applyOnce(ctx, client, req)
		if err == nil {
			return t.printApplied(resp)
		}
		pending, ok := pendingOf(err)
		switch {
		case !ok:
			return t.explainError(err)
		case !wait:
			return t.printPendingChange(pending)
		}
		fmt.Fprintf(t.errOut, "sluice: the approval %s is pending: %d vote(s) are missing, until %s\n", pending.Approval, pending.Missing, pending.Until.Format(time.DateTime))
		if err := t.waitForApproval(ctx, pending.Approval); err != nil {
			return fmt.Errorf("nothing was applied: %w", err)
		}
	}
}

func (t *tool) applyOnce(ctx context.Context, client policyv1.PolicyServiceClient, req *policyv1.ApplyDocumentsRequest) (*policyv1.ApplyDocumentsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	return client.ApplyDocuments(ctx, req)
}

func (t *tool) printPendingChange(p pendingChange) error {
	if t.json() {
		if err := t.printJSON(struct {
			Pending pendingChange `json:"pending"`
		}{p}); err != nil {
			return err
		}
		return exitError{errSilent, exitPending}
	}
	t.printf("pending: revision %s is not active yet. The approval %s needs %d more vote(s) until %s.", shortRevision(p.ID), p.Approval, p.Missing, p.Until.Format(time.DateTime))
	t.printf("Another person decides: %s", t.command("approvals approve "+p.Approval))
	t.printf("After that, run this command again with the same documents and the same reason. --wait waits for it.")
	return exitError{errSilent, exitPending}
}

// waitForApproval waits until an approval is no longer pending. It prints a line whenever the number of missing votes
// changes.
func (t *tool) waitForApproval(ctx context.Context, id string) error {
	client, done, err := t.approvalClient()
	if err != nil {
		return err
	}
	defer done()
	missing := int32(-1)
	for {
		stream, err := client.WatchApprovals(ctx, &approvalv1.WatchApprovalsRequest{ApprovalId: id})
		for err == nil {
			var m *approvalv1.WatchApprovalsResponse
			if m, err = stream.Recv(); err != nil || m.GetApproval() == nil {
				continue
			}
			a := m.GetApproval()
			if a.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
				fmt.Fprintf(t.errOut, "sluice: the approval %s is %s\n", id, enum.Name(a.GetState()))
				return endedWithoutApproval(a)
			}
			if missing >= 0 && a.GetVotesMissing() != missing {
				fmt.Fprintf(t.errOut, "sluice: the approval %s is pending: %d vote(s) are missing\n", id, a.GetVotesMissing())
			}
			missing = a.GetVotesMissing()
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("the approval %s is still pending: run this command again when people have decided", id)
		case !errors.Is(err, io.EOF) && !isUnavailable(err):
			return t.explainError(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// endedWithoutApproval returns an error if an approval has ended in a state that does not allow the change. The change
// then needs a new approval.
func endedWithoutApproval(a *approvalv1.Approval) error {
	switch a.GetState() { //nolint:exhaustive // in all other states, the caller applies the documents again
	case approvalv1.ApprovalState_APPROVAL_STATE_DENIED, approvalv1.ApprovalState_APPROVAL_STATE_EXPIRED, approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED:
		return fmt.Errorf("the approval %s is %s: %s", a.GetId(), enum.Name(a.GetState()), orDash(a.GetReason()))
	}
	return nil
}
