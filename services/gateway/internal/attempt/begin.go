package attempt

import (
	"context"
	"errors"
	"sync/atomic"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A WithheldError means that an allowed call was not sent. When the call was about to start, the policy no longer
// allowed it or the caller's token was no longer valid.
type WithheldError struct{ *refusal.Refusal }

// Error implements error.
func (e *WithheldError) Error() string { return e.Text() }

// A Permit allows a call to start as long as the policy service's last decision is valid. It implements
// [upstream.Permit].
type Permit struct {
	client   *Client
	ctx      context.Context //nolint:containedctx // the context of the call
	attempt  Attempt
	validity atomic.Pointer[decisioncache.Validity]
}

// Permit returns the permit for an allowed call. When the permit must be renewed, the policy service evaluates the call
// again, on behalf of the attempt's principal.
func (d *Client) Permit(ctx context.Context, a Attempt) *Permit {
	p := &Permit{client: d, ctx: ctx, attempt: a}
	p.validity.Store(&p.attempt.Validity)
	return p
}

// HasEnded implements [upstream.Permit]. A permit also ends when the caller's credential is no longer known to be
// valid. HasEnded does not wait for the policy service.
func (p *Permit) HasEnded() bool {
	return p.validity.Load().HasEnded() || p.attempt.Credential == nil || !p.attempt.Credential.IsValid()
}

// Renew returns nil if the call may start now. The decision can have become invalid while the call waited for its
// server, for an approver or for the gateway. In that case, the policy service evaluates the call again. Renew returns
// a [*WithheldError] if the policy now refuses the call, if no valid decision can be obtained, or if the caller's
// credential is no longer valid.
func (p *Permit) Renew() error {
	if refused := credentialRefusal(p.ctx, p.attempt); refused != nil {
		return &WithheldError{refused}
	}
	if !p.validity.Load().HasEnded() {
		return nil
	}
	next, refused := p.client.Judge(p.ctx, p.attempt)
	switch {
	case refused != nil:
	case p.attempt.Claim != nil && next.NeedsApproval(): // the claim is the required approval
	case !next.Allows():
		refused = next.PolicyChanged()
	}
	if refused == nil && (!p.attempt.Redactor.Makes(next.Decision.GetRedactions()) || p.attempt.lacksRecord(next.Decision)) {
		refused = next.PolicyChanged()
	}
	if refused == nil && next.Validity.HasEnded() {
		refused = &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Message: "the policy service responds too slowly."}
	}
	if refused != nil {
		return &WithheldError{refused}
	}
	p.validity.Store(&next.Validity)
	return nil
}

// lacksRecord reports whether the decision requires a stored copy of the arguments, although no copy was stored.
func (a Attempt) lacksRecord(d *policyv1.Decision) bool {
	return d.GetRecordArguments() && a.Recorded == nil && a.Sent.Arguments.Present()
}

// credentialRefusal returns the refusal for a call whose caller's credential is not valid. It returns nil if the
// credential is valid.
func credentialRefusal(ctx context.Context, a Attempt) *refusal.Refusal {
	err := authn.ErrTokensStale
	if a.Credential != nil {
		err = a.Credential.Check(ctx)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, authn.ErrTokensStale):
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Message: err.Error() + "."}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_UNAUTHENTICATED, Message: err.Error() + "."}
	}
}
