package attempt

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// These values in the journal's records describe what would have happened to a call if the whole policy were enforced.
const (
	wouldAllow           = "would_allow"
	wouldDeny            = "would_deny"
	wouldRequireApproval = "would_require_approval"
	wouldLimit           = "would_limit"
)

// errNotReserved explains why a call's limits that are only recorded (mode: observe) were not reserved. The ratelimit
// service had already failed to reserve the call's other limits.
var errNotReserved = status.Error(codes.Unavailable, "the limiter did not reserve the other limits of this call")

// ReserveObserved reserves those limits of an allowed call that are only recorded and not enforced (mode: observe). It
// uses a separate idempotency key. If the limits can't be reserved, the returned attempt contains the refusal that the
// call would have received.
func (d *Client) ReserveObserved(ctx context.Context, a Attempt) Attempt {
	observed := a.Decision.GetObserved()
	limits := observed.GetLimits()
	if len(limits) == 0 || observed.GetEffect() != policyv1.Effect_EFFECT_ALLOW {
		return a
	}
	if i := slices.IndexFunc(limits, isUnknown); i >= 0 {
		a.ObservedRefusal = &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Rule: limits[i].GetRule()}
		return a
	}
	if a.IsLimited() && a.Lease == nil {
		a.ObservedRefusal = d.notReserved(ctx, a, limits, errNotReserved)
		return a
	}
	lease, refused := d.reserve(ctx, a, limits, a.ID+"/observed")
	if refused == nil {
		a.ObservedLease = lease
	}
	a.ObservedRefusal = refused
	return a
}

// Observed returns what would have happened to the call if the whole policy were enforced. It returns the zero value if
// nothing would have been different. A decision that differs only in its rule or message does not count as different.
func (a Attempt) Observed() journal.Observed {
	would := a.Decision.GetObserved()
	switch refused := a.ObservedRefusal; {
	case would == nil:
		return journal.Observed{}
	case refused != nil:
		return journal.Observed{Effect: limitEffect(refused.Code), Code: enum.NameOrEmpty(refused.Code), Rule: rule(refused.Rule)}
	case would.GetEffect() == a.Decision.GetEffect() && would.GetCode() == a.Decision.GetCode():
		return journal.Observed{}
	}
	out := journal.Observed{Effect: wouldDeny, Code: enum.NameOrEmpty(would.GetCode()), Rule: rule(would.GetRule())}
	switch would.GetEffect() { //nolint:exhaustive // with every other effect, the call would have been refused
	case policyv1.Effect_EFFECT_ALLOW:
		out.Effect = wouldAllow
	case policyv1.Effect_EFFECT_REQUIRE_APPROVAL:
		out.Effect = wouldRequireApproval
	}
	return out
}

// limitEffect returns the effect to record for limits that are only recorded (mode: observe) and could not be reserved.
// If a limit was exceeded, the effect is would_limit. If the ratelimit service is unavailable, or if this gateway does
// not support a limit, the effect is would_deny.
func limitEffect(code commonv1.Code) string {
	switch code { //nolint:exhaustive // no other code means that a limit was exceeded
	case commonv1.Code_CODE_RATE_LIMITED, commonv1.Code_CODE_BUDGET_EXCEEDED, commonv1.Code_CODE_LOOP_DETECTED:
		return wouldLimit
	default:
		return wouldDeny
	}
}
