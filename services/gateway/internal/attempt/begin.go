package attempt

import (
	"context"
	"errors"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// A WithheldError means that an allowed call was not sent, because policy did not allow it any more, or its
// caller's token was not valid any more, when it was to begin.
type WithheldError struct{ *refusal.Refusal }

// Error implements error.
func (e *WithheldError) Error() string { return e.Text() }

// MayBegin returns nil if the call may begin now. Policy evaluates the call again if its decision is no longer valid,
// because the call has waited for its server, for an approver or for the gateway. MayBegin returns a [*WithheldError] if
// policy refuses the call now, if no valid decision can be obtained, or if the caller's token is not valid any more.
func (d *Client) MayBegin(ctx context.Context, a Attempt) error {
	if refused := tokenRefusal(a); refused != nil {
		return &WithheldError{refused}
	}
	if !a.Validity.HasEnded() {
		return nil
	}
	next, refused := d.Judge(ctx, a)
	switch {
	case refused != nil:
	case a.Claim != nil && next.NeedsApproval(): // the claim is the approval
	case !next.Allows():
		refused = next.PolicyChanged()
	}
	if refused == nil && next.Validity.HasEnded() {
		refused = &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Message: "the policy service responds too slowly."}
	}
	if refused == nil {
		return nil
	}
	return &WithheldError{refused}
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
