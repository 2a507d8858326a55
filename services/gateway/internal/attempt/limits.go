package attempt

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// leaseTime is how long the gateway can release a reservation after making it. A short period is enough, because the
// gateway releases a reservation only if the call was never sent. The gateway knows this as soon as the connection
// attempt has failed. After leaseTime, the ratelimit service counts the reservation as used without a confirmation from
// the gateway.
const leaseTime = 15 * time.Second

// Miscounted is the message in refusals while two instances of the ratelimit service answer alternately.
const Miscounted = "two instances of the ratelimit role answer alternately, and each keeps its own counts, which would multiply every limit: run only one of them; limited calls are allowed again a minute after the last answer of the other"

// IsLimited reports whether limits must be reserved for the call.
func (a Attempt) IsLimited() bool { return len(a.Decision.GetLimits()) > 0 }

// Reserve reserves all limits of a call, with the given idempotency key. If a limit is exceeded, Reserve reserves none
// of them and returns a refusal.
func (d *Client) Reserve(ctx context.Context, a Attempt, key string) (Attempt, *refusal.Refusal) {
	var refused *refusal.Refusal
	a.Lease, refused = d.reserve(ctx, a, a.Decision.GetLimits(), key)
	return a, refused
}

// reserve reserves the given limits for a call. If a limit is exceeded, reserve reserves none of them and returns a
// refusal.
func (d *Client) reserve(ctx context.Context, a Attempt, limits []*policyv1.RuleLimit, key string) (*ratelimitv1.Lease, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, a.Principal), peerTimeout)
	defer cancel()
	asked := time.Now()
	resp, err := d.deps.Limiter.ReserveLimits(ctx, &ratelimitv1.ReserveLimitsRequest{
		IdempotencyKey: key, Limits: LimitsOf(limits), Lease: durationpb.New(leaseTime),
	})
	if err != nil {
		return nil, d.notReserved(ctx, a, limits, err)
	}
	lease := resp.GetLease()
	if d.instances.observe(resp.GetInstance(), asked) {
		return lease, d.miscounted(ctx, a, limits, lease)
	}
	if lease != nil {
		return lease, nil
	}
	return nil, a.limited(limits, resp.GetRefusal())
}

// LimitsOf returns a decision's limits in the form that a reservation request needs.
func LimitsOf(limits []*policyv1.RuleLimit) []*ratelimitv1.Limit {
	out := make([]*ratelimitv1.Limit, len(limits))
	for i, l := range limits {
		out[i] = l.GetLimit()
	}
	return out
}

// isUnknown reports whether this gateway does not support a limit. The gateway can only reserve limits. It can neither
// renew a concurrency limit nor report how much a call has actually used.
func isUnknown(l *policyv1.RuleLimit) bool {
	return l.GetLimit().GetKind() == ratelimitv1.LimitKind_LIMIT_KIND_CONCURRENCY || l.GetSettle() != ""
}

// notReserved returns the refusal for a call whose limits cannot be reserved. It returns nil if the ratelimit service
// is unavailable and all limits are configured to allow calls in that case. If the ratelimit service itself returned
// the error, notReserved refuses the call.
func (d *Client) notReserved(ctx context.Context, a Attempt, limits []*policyv1.RuleLimit, err error) *refusal.Refusal {
	d.deps.Log.WarnContext(ctx, "limits were not reserved", "decision_id", a.ID, "error", err)
	code := status.Code(err)
	away := code == codes.Unavailable || code == codes.DeadlineExceeded
	for _, l := range limits {
		if !away || l.GetOnError() != policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW {
			return &refusal.Refusal{
				Code: commonv1.Code_CODE_LIMITER_UNAVAILABLE, Rule: l.GetRule(),
				PolicyRevision: a.Decision.GetPolicyRevision(),
			}
		}
	}
	return nil
}

// miscounted returns the refusal for a call whose limits are counted separately by two instances of the ratelimit
// service. The call is refused even if a rule allows calls while the service is unavailable, because the service is
// available.
func (d *Client) miscounted(ctx context.Context, a Attempt, limits []*policyv1.RuleLimit, lease *ratelimitv1.Lease) *refusal.Refusal {
	d.deps.Log.WarnContext(ctx, Miscounted, "decision_id", a.ID)
	d.ReleaseLease(ctx, lease.GetId(), a.ID)
	refused := &refusal.Refusal{Code: commonv1.Code_CODE_LIMITER_UNAVAILABLE, Message: Miscounted + ".", PolicyRevision: a.Decision.GetPolicyRevision()}
	if len(limits) > 0 {
		refused.Rule = limits[0].GetRule()
	}
	return refused
}

// IsMiscounting reports whether calls with rate limits are currently refused because two instances of the ratelimit
// service answer alternately and count separately.
func (d *Client) IsMiscounting() bool { return d.instances.isSplit() }

// limited returns the refusal for a call that exceeds a limit. exceeded is the refusal of the ratelimit service. If the
// service returned neither a lease nor a refusal, exceeded is nil, and limited refuses the call because the service is
// unavailable.
func (a Attempt) limited(limits []*policyv1.RuleLimit, exceeded *ratelimitv1.Refusal) *refusal.Refusal {
	refused := &refusal.Refusal{
		Code:           exceeded.GetCode(),
		RetryAfter:     exceeded.GetRetryAfter().AsDuration(),
		PolicyRevision: a.Decision.GetPolicyRevision(),
	}
	if refused.Code == commonv1.Code_CODE_UNSPECIFIED {
		refused.Code = commonv1.Code_CODE_LIMITER_UNAVAILABLE
	}
	if i := int(exceeded.GetLimit()); exceeded != nil && i >= 0 && i < len(limits) {
		l := limits[i]
		refused.Rule, refused.SessionKey = l.GetRule(), l.GetSessionKey()
		refused.Message = describe(l)
	}
	return refused
}

func describe(l *policyv1.RuleLimit) string {
	of := "for each session"
	switch {
	case l.GetCap():
		of = "for all sessions of this caller together"
	case l.GetSessionKey() == policyv1.SessionKey_SESSION_KEY_UNSPECIFIED:
		of = "here"
	case l.GetSessionKey() == policyv1.SessionKey_SESSION_KEY_PRINCIPAL:
		of = "for each caller"
	case l.GetSessionKey() == policyv1.SessionKey_SESSION_KEY_RUN:
		of = "for each run"
	}
	return "at most " + l.GetLimit().GetMax() + " calls in " + l.GetLimit().GetWindow().AsDuration().String() + " " + of + "."
}

// ReleaseLease releases the reservation of a call that was never sent. The caller must be certain of this. If the lease
// is empty, ReleaseLease does nothing.
func (d *Client) ReleaseLease(ctx context.Context, lease, decisionID string) {
	if lease == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	_, err := d.deps.Limiter.SettleLease(ctx, &ratelimitv1.SettleLeaseRequest{
		Target:     &ratelimitv1.SettleLeaseRequest_LeaseId{LeaseId: lease},
		Settlement: ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT,
	})
	if err != nil { // the reservation counts as used, because an error must not give the caller more calls
		d.deps.Log.WarnContext(ctx, "reservation was not released", "decision_id", decisionID, "error", err)
	}
}
