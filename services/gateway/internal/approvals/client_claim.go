package approvals

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// lease is how long a claim stays valid unless it is renewed. renewEvery is the interval at which the gateway
	// renews a claim while the call is in flight.
	lease      = time.Minute
	renewEvery = lease / 3
	// firstRetry and lastRetry are the shortest and the longest pause before a failed request to the approval service
	// is repeated.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
)

// ClaimRequest is a request to claim an approval.
type ClaimRequest struct {
	// Principal is the caller.
	Principal *identityv1.Principal
	// Approval is the last known state of the approval.
	Approval *approvalv1.Approval
	// ID is the id of the claim, and also the id under which the journal records the decision.
	ID string
	// Decided is the policy service's current decision, signed for this claim. Attest requests a newer decision. Lease
	// identifies the reservation of the call's limits; it is empty if nothing was reserved.
	Decided *policyv1.DecideCallResponse
	Attest  Attest
	Lease   string
	// Definition is the digest of the tool's current definition. ServerIdentity identifies the current server, for
	// example by its URL.
	Definition     []byte
	ServerIdentity string
}

// Claim claims an approval, which permits the gateway to send the call. If the response is lost or the decision is too
// old, Claim requests a new decision from the policy service and tries again. All attempts have the same id, so that
// the approval service treats them as one claim. Claim also returns the last decision of the policy service.
func (w *Client) Claim(ctx context.Context, c ClaimRequest) (*approvalv1.ClaimApprovalResponse, *policyv1.Decision, error) {
	ctx = authn.OnBehalfOf(ctx, c.Principal)
	last := c.Decided.GetDecision()
	for judged := 1; ; judged++ {
		resp, err := w.claim(ctx, &approvalv1.ClaimApprovalRequest{
			ApprovalId: c.Approval.GetId(), ClaimId: c.ID, Holder: w.cfg.Holder, Attempt: c.Approval.GetAttempt(),
			Decision: c.Decided.GetDecision(), SignedDecision: c.Decided.GetSignedDecision(),
			LimitLeaseId: c.Lease, DefinitionDigest: c.Definition, ServerIdentity: c.ServerIdentity, Lease: durationpb.New(lease),
		})
		if retry := isStale(err) && judged < maxAttestations || isUnavailable(err) && judged == 1; !retry {
			return resp, last, err
		}
		decided, refused := c.Attest(ctx, c.Approval.GetId(), c.Approval.GetAttempt())
		if decided != nil {
			last = decided.GetDecision()
		}
		if refused != nil {
			return nil, last, err
		}
		c.Decided = decided
	}
}

func (w *Client) claim(ctx context.Context, req *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return w.client.ClaimApproval(ctx, req)
}

// RenewClaim renews a claim at intervals until the returned function is called.
func (w *Client) RenewClaim(ctx context.Context, approvalID, claimID string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(renewEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			inTime, cancel := context.WithTimeout(ctx, askTimeout)
			_, err := w.client.RenewClaim(inTime, &approvalv1.RenewClaimRequest{ApprovalId: approvalID, ClaimId: claimID, Holder: w.cfg.Holder, Lease: durationpb.New(lease)})
			cancel()
			if err != nil && ctx.Err() == nil { // the call continues, because CompleteClaim reports its outcome in any case
				w.log.WarnContext(ctx, "claim was not renewed", "approval_id", approvalID, "error", err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// ReleaseClaim releases the claim of a call that was never sent. It returns the id of the reservation of the call's
// limits, or "" if nothing was reserved. The caller must release that reservation. ReleaseClaim retries until the
// service answers or ctx is cancelled.
func (w *Client) ReleaseClaim(ctx context.Context, approvalID, claimID, reason string) (limitLease string, err error) {
	var a *approvalv1.Approval
	err = w.retry(ctx, func(ctx context.Context) error {
		resp, err := w.client.ReleaseClaim(ctx, &approvalv1.ReleaseClaimRequest{ApprovalId: approvalID, ClaimId: claimID, Holder: w.cfg.Holder, Reason: reason})
		a = resp.GetApproval()
		return err
	})
	if rpc.Reason(err) == "LEASE_ENDED" {
		a, err = w.tryComplete(ctx, approvalID, claimID, approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT)
	}
	return a.GetClaim().GetLimitLeaseId(), err
}

// CompleteClaim reports the outcome of a claimed call. It retries until the service answers or ctx is cancelled.
func (w *Client) CompleteClaim(ctx context.Context, approvalID, claimID string, outcome approvalv1.CallOutcome) error {
	_, err := w.tryComplete(ctx, approvalID, claimID, outcome)
	return err
}

func (w *Client) tryComplete(ctx context.Context, approvalID, claimID string, outcome approvalv1.CallOutcome) (a *approvalv1.Approval, err error) {
	err = w.retry(ctx, func(ctx context.Context) error {
		resp, err := w.client.CompleteClaim(ctx, &approvalv1.CompleteClaimRequest{ApprovalId: approvalID, ClaimId: claimID, Holder: w.cfg.Holder, Outcome: outcome})
		a = resp.GetApproval()
		return err
	})
	return a, err
}

// retry calls a function until the function returns nil or a final error, or until ctx is cancelled. An error is final
// unless it means that the service is unavailable.
func (w *Client) retry(ctx context.Context, ask func(context.Context) error) error {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		inTime, cancel := context.WithTimeout(ctx, askTimeout)
		err := ask(inTime)
		cancel()
		if !isUnavailable(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}
