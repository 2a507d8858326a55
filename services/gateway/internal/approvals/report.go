package approvals

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// reportTimeout limits how long the answer to an approved call is delayed so that the gateway can first report the
// outcome. Without this delay, an equal call that follows immediately would find the old claim instead of requesting a
// new approval.
const reportTimeout = 200 * time.Millisecond

// Reported is a channel that is closed once the outcome of a call has been reported to the approval service. It is nil
// if there is nothing to report.
type Reported <-chan struct{}

// WaitBriefly waits for the report, but not longer than 200 ms.
func (t Reported) WaitBriefly() {
	if t == nil {
		return
	}
	late := time.NewTimer(reportTimeout)
	defer late.Stop()
	select {
	case <-t:
	case <-late.C:
	}
}

// RenewClaim renews the claim of an approved call until the returned function is called.
func (k *Manager) RenewClaim(ctx context.Context, a attempt.Attempt) (stop func()) {
	if a.Claim == nil {
		return func() {}
	}
	return k.client.RenewClaim(ctx, a.Claim.GetId(), a.ID)
}

// ReleaseUnsent releases the limits that were reserved for a call that was certainly never sent. If the call runs under
// an approval, ReleaseUnsent first releases the claim, in the background.
func (k *Manager) ReleaseUnsent(ctx context.Context, a attempt.Attempt, reason string) Reported {
	k.attempts.ReleaseLease(ctx, a.ObservedLease.GetId(), a.ID)
	if a.Claim == nil {
		k.attempts.ReleaseLease(ctx, a.Lease.GetId(), a.ID)
		return nil
	}
	return k.reportInBackground(ctx, a, outcomeReport{reason: reason, class: journal.ResultNeverSent, lease: a.Lease.GetId()})
}

// ReportOutcome reports the outcome of an approved call to the approval service, in the background.
func (k *Manager) ReportOutcome(ctx context.Context, a attempt.Attempt, class journal.ResultClass) Reported {
	// gofail: var gatewayBeforeComplete struct{}
	return k.reportInBackground(ctx, a, outcomeReport{class: class})
}

// reportInBackground sends a report in the background. If the gateway stops before the report has succeeded, it sends
// the report after its next start, when it replays the journal.
func (k *Manager) reportInBackground(ctx context.Context, a attempt.Attempt, n outcomeReport) Reported {
	done := make(chan struct{})
	n.approval, n.claim = a.Claim.GetId(), a.ID
	ctx, cancel := context.WithCancel(ctx)
	end := context.AfterFunc(k.stopped, cancel)
	k.reports.Go(func() {
		defer cancel()
		defer end()
		err := k.sendReport(ctx, n)
		close(done)
		if err != nil {
			k.log.WarnContext(ctx, "the outcome of a call was not reported to the approval service", "decision_id", a.ID, "error", err)
			return
		}
		// gofail: var gatewayAfterComplete struct{}
		k.attempts.RecordSettled(ctx, a)
	})
	return done
}

type outcomeReport struct {
	// approval and claim are the ids of the approval and the claim.
	approval, claim string
	class           journal.ResultClass
	// reason explains why the call was never sent.
	reason string
	// lease identifies the limits that are reserved for the call. They are released only if the call was never sent,
	// and only if the approval service returns the same lease or the field is anyLease.
	lease string
}

// anyLease matches every lease. A report contains it if the sender does not know which limits are reserved for the
// call.
const anyLease = "*"

// sendReport reports the outcome of a call to the approval service. It retries until the service answers or ctx is
// cancelled. It returns nil if the approval service no longer accepts an outcome for the claim.
func (k *Manager) sendReport(ctx context.Context, n outcomeReport) error {
	err := error(nil)
	if n.class == journal.ResultNeverSent {
		var lease string
		lease, err = k.client.ReleaseClaim(ctx, n.approval, n.claim, n.reason)
		if err == nil && (lease == n.lease || n.lease == anyLease) {
			k.attempts.ReleaseLease(ctx, lease, n.claim)
		}
	} else {
		err = k.client.CompleteClaim(ctx, n.approval, n.claim, outcomes[n.class])
	}
	if code := status.Code(err); code == codes.FailedPrecondition || code == codes.NotFound { // nothing to report
		return nil
	}
	return err
}

var outcomes = map[journal.ResultClass]approvalv1.CallOutcome{
	journal.ResultOK:            approvalv1.CallOutcome_CALL_OUTCOME_DONE,
	journal.ResultToolError:     approvalv1.CallOutcome_CALL_OUTCOME_FAILED,
	journal.ResultProtocolError: approvalv1.CallOutcome_CALL_OUTCOME_FAILED,
	// The client itself runs the call, so the gateway has finished its part. If the gateway reported the outcome as
	// unknown, an operator would have to settle the call.
	journal.ResultHostExecuted: approvalv1.CallOutcome_CALL_OUTCOME_DONE,
	journal.ResultUnknown:      approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN,
	journal.ResultNeverSent:    approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT,
}
