package approvals

import (
	"cmp"
	"context"
	"errors"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// maxClaims limits how often the gateway tries to claim or to cancel an approval. The gateway must try again if the
// approval changes during an attempt.
const maxClaims = 8

// RequestAndClaim requests an approval for a call and waits for the decision. If the call is approved, RequestAndClaim
// claims the approval. If several equal calls wait for one approval, only one of them can claim it.
func (k *Manager) RequestAndClaim(ctx, disconnected context.Context, a attempt.Attempt) (attempt.Attempt, *refusal.Refusal) {
	// For other methods, the clients of some protocol revisions cannot wait for the answer.
	if a.Tools == nil || !mcp.IsMultiRound(a.Sent.Method) {
		return a, Unavailable()
	}
	if refused := k.RefuseIfEnded(ctx, a); refused != nil {
		return a, refused
	}
	definition, err := a.Tools.Definition(ctx, false)
	if err != nil {
		return a, k.definitionRefusal(ctx, a, err)
	}
	until := k.client.HoldUntil(a.Client, time.Now())
	if a.Hold != nil {
		until = time.Now().Add(*a.Hold)
	}
	lostClaim := false
	for range maxClaims {
		result, refused := k.client.RequestAndHold(ctx, Request{
			Principal: a.Principal, Attest: k.attestFunc(a, definition), DecisionID: a.ID, ApprovalID: waitedFor(a), Until: until, Caller: disconnected, Drain: k.draining,
			Reply: a.Reply, Confirm: a.Confirm,
			Call: &approvalv1.BoundCall{ServerIdentity: a.Identity, Call: a.PolicyCall(definition)},
		})
		a.HeldFor += result.Held
		// If the request was refused before the policy service decided, the attempt keeps its earlier decision. If the policy
		// service returned an empty response, the attempt has no decision and is refused below.
		if result.Decision != nil || refused == nil {
			a.Decision = result.Decision
		}
		switch {
		case refused != nil:
			return a, refused
		case result.Approval == nil:
			if lostClaim {
				a = a.WithNewID()
			}
			return a, k.cancelSuperseded(ctx, a, a.Refusal())
		case disconnected.Err() != nil: // the approval stays pending; the call runs only if the caller repeats it
			return a, refusalFor(result.Approval)
		}
		if a, refused, lostClaim = k.tryClaim(ctx, a, result.Approval); !lostClaim {
			return a, refused
		}
	}
	return a, Unavailable()
}

// RefuseIfEnded refuses a call that refers to an approval that has ended, even if the policy no longer requires an
// approval. The refusal states how the approval ended. A caller that missed the answer to an earlier request thus
// learns the outcome. RefuseIfEnded returns nil if the approval is pending or approved, or if the call refers to no
// approval.
func (k *Manager) RefuseIfEnded(ctx context.Context, a attempt.Attempt) *refusal.Refusal {
	if id := waitedFor(a); id != "" {
		return k.client.RefuseIfEnded(ctx, a.Principal, id)
	}
	return nil
}

// waitedFor returns the id of the approval that an earlier request for the same call waited for, or "" if there is
// none.
func waitedFor(a attempt.Attempt) string { return cmp.Or(a.ApprovalID, a.Sent.Meta.Approval) }

func (k *Manager) attestFunc(a attempt.Attempt, definition []byte) Attest {
	return func(ctx context.Context, approval string, n int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
		return k.attempts.Attest(ctx, a, definition, approval, n)
	}
}

// definitionRefusal returns the refusal for a call to a tool whose definition cannot be read. The call is refused
// because approvers would not know what they approve.
func (k *Manager) definitionRefusal(ctx context.Context, a attempt.Attempt, err error) *refusal.Refusal {
	k.log.WarnContext(ctx, "the tool's definition was not read", "decision_id", a.ID, "server", a.Server)
	k.log.DebugContext(ctx, "the tool's definition was not read", "decision_id", a.ID, "error", upstream.ForLog(err))
	if errors.Is(err, toolreport.ErrNotReported) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	if errors.Is(err, toolreport.ErrRefused) {
		return &refusal.Refusal{
			Code:    commonv1.Code_CODE_QUARANTINED,
			Message: "the server lists a tool twice, or its list is too long, so it is not known what this call would run; ask an operator to run `sluice catalog servers`.",
		}
	}
	if refused := attempt.SignInRefusal(err); refused != nil { // the approval stays valid
		return refused
	}
	return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, Message: "the server does not list its tools, so no approval can be requested for this call."}
}

// tryClaim claims an approval for a call if the policy service's current decision allows that. It returns changed =
// true if the approval has changed in the meantime, so that the caller must request the approval again.
func (k *Manager) tryClaim(ctx context.Context, a attempt.Attempt, by *approvalv1.Approval) (_ attempt.Attempt, refused *refusal.Refusal, changed bool) {
	if a.Credential == nil || a.Credential.Check(ctx) != nil {
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}, false
	}
	definition, err := a.Tools.Definition(ctx, true)
	if err != nil {
		return a, k.definitionRefusal(ctx, a, err), false
	}
	decided, refused := k.attempts.Attest(ctx, a, definition, by.GetId(), by.GetAttempt())
	if refused != nil {
		return a, refused, false
	}
	a.Decision = decided.GetDecision()
	if refused = a.Refusal(); refused != nil && (a.Decision.GetEffect() != policyv1.Effect_EFFECT_DENY || a.ApprovalStaysValid()) {
		return a, refused, false // for any other denial, the claim below ends the approval
	}
	if list := a.Decision.GetRedactions(); refused == nil && (!a.Redactor.MakesInArguments(list) || (a.Transport == upstream.KindHost || a.AnsweredLater) && !a.Redactor.Makes(list)) {
		return a, a.PolicyChanged(), false // approvers have not seen the arguments that would be sent
	}
	a, claimed, refused := k.claim(ctx, a, by, decided, definition)
	switch {
	case refused != nil:
		return a, refused, false
	case claimed.changed, claimed.refusal.GetCode() == commonv1.Code_CODE_APPROVAL_PENDING:
		return a, nil, true
	case claimed.err != nil:
		k.log.WarnContext(ctx, "call was not claimed", "decision_id", a.ID, "approval_id", by.GetId(), "error", claimed.err)
		return k.releaseClaim(ctx, a, "whether the claim was made is not known"), Unavailable(), false
	case claimed.claimed == nil:
		return a, k.client.translateRefusal(claimed.refusal), false
	}
	if refused = a.Refusal(); refused != nil { // a denial by the policy overrides the approval
		return k.releaseClaim(ctx, a, "policy denies the call now"), refused, false
	}
	a, refused = k.restoreStored(ctx, a, claimed.claimed)
	a.Definition = definition // the definition that the claim contains
	return a, refused, false
}
