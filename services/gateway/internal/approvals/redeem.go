package approvals

import (
	"context"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// Unasked passes or refuses a call on which policy wants nobody to decide. What people
// decided before is used up or ended with it, and policy has the last word: without an
// approval nothing runs that it does not allow.
func (k *Clerk) Unasked(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	denied := a.Refusal()
	if denied != nil && !a.Denies() {
		return a, denied
	}
	a, refused := k.redeem(ctx, a)
	switch {
	case denied != nil:
		return a, denied
	case refused == nil && a.Claim == nil && !a.Allows():
		return a, a.Changed()
	default:
		return a, refused
	}
}

// redeem passes a call of which policy asks nobody any more through the approval that
// people gave before, where this gateway has asked them: allowed, it uses the
// approval up, so that no second call runs on the same votes; denied, it ends it. What
// policy decided holds whatever comes of that. The refusal is that of a limit or of
// the journal, which such a call meets without an approval as well.
func (k *Clerk) redeem(ctx context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	for range maxClaims {
		by := k.waiter.Approval(ctx, *callOf(a))
		if by == nil {
			return a, nil
		}
		var refused *refusal.Refusal
		again := false
		if a, refused, again = k.spend(ctx, a, by); !again {
			return a, refused
		}
	}
	return a, nil
}

// spend claims an approval for a call that policy allows, or ends it with one that policy
// denies. It reports whether the approval has changed, so that it is to be looked at again.
func (k *Clerk) spend(ctx context.Context, a attempt.Attempt, by *approvalv1.Approval) (_ attempt.Attempt, refused *refusal.Refusal, again bool) {
	var definition []byte
	denied := a.Denies()
	if !denied { // a denial ends it whatever the tool is
		if a.Tools == nil {
			return a, nil, false
		}
		var err error
		if definition, err = a.Tools.Definition(ctx, true); err != nil {
			return a, nil, false
		}
	}
	decided, refused := k.desk.Attest(ctx, a, definition, by.GetId(), by.GetAttempt())
	if refused != nil {
		return a, refused, false
	}
	now := a
	now.Decision = decided.GetDecision()
	switch {
	case denied && !now.Denies():
		return a, nil, false // its denial was what the call met
	case denied != now.Denies(), !denied && !now.Allows():
		return now, now.Changed(), false
	}
	now, said, refused := k.claim(ctx, now, by, decided, definition)
	switch {
	case refused != nil:
		return now, refused, false
	case said.err == nil && said.claimed == nil: // the call goes on as if nobody had been asked
		return now.Anew(), nil, said.changed
	case now.Denies(): // it has ended by now, unless the approval service says otherwise
		return k.abandon(ctx, now, "policy denies the call now").Anew(), nil, false
	case said.err != nil && !now.Allows():
		return k.abandon(ctx, now, "whether the claim was made is not known"), Unavailable(), false
	case said.err != nil:
		now, refused = k.uncertain(ctx, now, said.err)
		return now, refused, false
	}
	if refused = now.Refusal(); refused != nil {
		return k.abandon(ctx, now, "policy asks for something else now"), refused, false
	}
	if now, refused = k.take(ctx, now, said.claimed); refused != nil { // it was given back: the call runs as it came
		now = now.Anew()
	}
	return now, nil, false
}

// uncertain goes on with a call of which it is not known whether it has the claim: if
// it has, what comes of it is told, and no other runs on that approval. What was
// reserved is the claim's, so the call reserves for itself.
func (k *Clerk) uncertain(ctx context.Context, a attempt.Attempt, err error) (attempt.Attempt, *refusal.Refusal) {
	k.log.WarnContext(ctx, "whether an allowed call has used its approval is not known; it goes on", "decision_id", a.ID, "approval_id", a.Claim.GetId(), "error", err)
	a.Lease = nil
	if !a.IsLimited() {
		return a, nil
	}
	a, refused := k.desk.Reserve(ctx, a, a.ID)
	if refused != nil {
		return k.abandon(ctx, a, "its limits were not reserved"), refused
	}
	return a, nil
}

// callOf is a call as it is known where people were asked about it.
func callOf(a attempt.Attempt) *Call {
	return &Call{
		Principal: a.Principal, Server: a.Server, Identity: a.Identity, Method: a.Sent.Method, Name: a.Name(),
		Params: a.Sent.Params.Of(a.Sent.Raw),
	}
}
