package pipeline

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
)

// redeem passes a call of which policy asks nobody any more through the approval that
// people gave before, where this gateway has asked them: allowed, it uses the
// approval up, so that no second call runs on the same votes; denied, it ends it. What
// policy decided holds whatever comes of that. The refusal is that of a limit or of
// the journal, which such a call meets without an approval as well.
func (r *run) redeem(ctx context.Context) *refusal.Refusal {
	for range maxClaims {
		a := r.deps.Waiter.Approval(ctx, wait.Call{
			Principal: r.Principal, Server: r.Server, Identity: r.Identity, Method: r.Message.Method, Name: name(r.Message),
			Params: r.Message.Params.Of(r.Message.Raw),
		})
		if a == nil {
			return nil
		}
		if refused, again := r.spend(ctx, a); !again {
			return refused
		}
	}
	return nil
}

// denies tells whether policy denies the call, and not this gateway alone.
func (r *run) denies() bool {
	return r.decision.GetEffect() == policyv1.Effect_EFFECT_DENY || r.decision.GetHidden()
}

// allows tells whether policy lets the call pass and asks for nothing that this gateway
// can't do.
func (r *run) allows() bool {
	return r.decision.GetEffect() == policyv1.Effect_EFFECT_ALLOW && r.verdict() == nil
}

// spend claims an approval for a call that is judged. It tells whether the approval
// has changed, so that it is to be looked at again.
func (r *run) spend(ctx context.Context, a *approvalv1.Approval) (refused *refusal.Refusal, again bool) {
	var definition []byte
	if !r.denies() { // a denial ends it whatever the tool is
		if r.Definition == nil {
			return nil, false
		}
		var err error
		if definition, err = r.Definition(ctx, true); err != nil {
			return nil, false
		}
	}
	was, denied, judge := r.decision, r.denies(), r.judging(definition)
	decided, refused := judge(ctx, a.GetId(), a.GetAttempt())
	if refused != nil {
		return refused, false
	}
	switch {
	case denied && !r.denies():
		r.decision = was // its denial was what the call met
		return nil, false
	case r.denies() != denied, !denied && !r.allows():
		return r.changed(), false
	}
	r.id, r.lease, r.approved = newID(), nil, &approved{Approval: a, attempt: a.GetAttempt()}
	if refused := r.prepare(ctx, !r.denies()); refused != nil {
		return r.drop(ctx, refused), false
	}
	resp, err := r.deps.Waiter.Claim(ctx, r.claiming(decided, definition, judge))
	switch {
	case status.Code(err) == codes.Aborted:
		r.pass(ctx)
		return nil, true
	case r.denies():
		r.void(ctx, resp, err)
		return nil, false
	case err != nil && !r.allows():
		return r.abandon(ctx, "whether the claim was made is not known"), false
	case err != nil:
		return r.uncertain(ctx, err), false
	case resp.GetClaimed() == nil:
		if resp.GetRefusal().GetLeaseUnused() {
			r.giveBack(ctx)
		}
		r.pass(ctx)
		return nil, false
	}
	if refused := r.verdict(); refused != nil {
		r.abandon(ctx, "policy asks for something else now")
		return refused, false
	}
	if r.take(ctx, resp.GetClaimed()) != nil { // it was given back: the call runs as it came
		r.id = newID()
	}
	return nil, false
}

// redeemed is redeem for a call that policy has allowed. While that is done policy is
// asked again, and has the last word: without an approval nothing runs that it does not
// allow.
func (r *run) redeemed(ctx context.Context) *refusal.Refusal {
	refused := r.redeem(ctx)
	if refused == nil && r.approved == nil && !r.allows() {
		return r.changed()
	}
	return refused
}

// changed is the refusal of a call on which policy decides otherwise than a moment ago.
func (r *run) changed() *refusal.Refusal {
	if refused := r.verdict(); refused != nil {
		return refused
	}
	return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Message: "the policy has just changed; make the call again."}
}

// pass goes on without the approval, as if nobody had been asked.
func (r *run) pass(ctx context.Context) {
	r.drop(ctx, nil)
	r.id = newID()
}

// void leaves the approval of a call that policy denies. It has ended by now, unless
// the approval service says otherwise.
func (r *run) void(ctx context.Context, resp *approvalv1.ClaimApprovalResponse, err error) {
	if err != nil || resp.GetClaimed() != nil {
		r.abandon(ctx, "policy denies the call now")
		r.id = newID()
		return
	}
	r.pass(ctx)
}

// uncertain goes on with a call of which it is not known whether it has the claim: if
// it has, what comes of it is told, and no other runs on that approval. What was
// reserved is the claim's, so the call reserves for itself.
func (r *run) uncertain(ctx context.Context, err error) *refusal.Refusal {
	r.deps.Log.WarnContext(ctx, "whether an allowed call has used its approval is not known; it goes on", "decision_id", r.id, "approval_id", r.approved.GetId(), "error", err)
	r.lease = nil
	refused := r.reserveAs(ctx, r.id)
	if refused != nil {
		r.abandon(ctx, "its limits were not reserved")
	}
	return refused
}
