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

// A WithheldError means that an allowed call was not sent, because policy did not allow it any more, or its
// caller's token was not valid any more, when it was to begin.
type WithheldError struct{ *refusal.Refusal }

// Error implements error.
func (e *WithheldError) Error() string { return e.Text() }

// A Permit allows a call to begin for as long as policy's last decision is valid. It implements [upstream.Permit].
type Permit struct {
	client   *Client
	ctx      context.Context //nolint:containedctx // the context of the call
	attempt  Attempt
	validity atomic.Pointer[decisioncache.Validity]
}

// Permit returns the permit of an allowed call. The policy service is asked on behalf of the principal of ctx.
func (d *Client) Permit(ctx context.Context, a Attempt) *Permit {
	p := &Permit{client: d, ctx: ctx, attempt: a}
	p.validity.Store(&a.Validity)
	return p
}

// HasEnded implements [upstream.Permit]. A permit also ends when the caller's token is not known to be valid. HasEnded
// does not wait for policy.
func (p *Permit) HasEnded() bool {
	return p.validity.Load().HasEnded() || p.attempt.HasValidToken != nil && !p.attempt.HasValidToken()
}

// Renew returns nil if the call may begin now. Policy evaluates the call again if its decision is no longer valid,
// because the call has waited for its server, for an approver or for the gateway. Renew returns a [*WithheldError] if
// policy refuses the call now, if no valid decision can be obtained, or if the caller's token is not valid any more.
func (p *Permit) Renew() error {
	if refused := tokenRefusal(p.attempt); refused != nil {
		return &WithheldError{refused}
	}
	if !p.validity.Load().HasEnded() {
		return nil
	}
	next, refused := p.client.Judge(p.ctx, p.attempt)
	switch {
	case refused != nil:
	case p.attempt.Claim != nil && next.NeedsApproval(): // the claim is the approval
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

// lacksRecord reports whether a later decision asks for a copy of the arguments that was not stored.
func (a Attempt) lacksRecord(d *policyv1.Decision) bool {
	return d.GetRecordArguments() && a.Recorded == nil && a.Sent.Arguments.Present()
}

// tokenRefusal returns the refusal for a call whose caller's token is not valid any more, or nil.
func tokenRefusal(a Attempt) *refusal.Refusal {
	if a.TokenError == nil {
		return nil
	}
	err := a.TokenError()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, authn.ErrTokensStale):
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_UNAUTHENTICATED, Message: err.Error() + "."}
	}
}
