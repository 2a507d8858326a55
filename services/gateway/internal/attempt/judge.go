package attempt

import (
	"context"
	"slices"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/redaction"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// Judge returns the attempt with a decision on the call. If the cache contains a valid decision on an equal call, Judge
// uses that decision. Otherwise it asks the policy service.
func (d *Client) Judge(ctx context.Context, a Attempt) (Attempt, *refusal.Refusal) {
	question := decisioncache.Query{Principal: a.Principal, Method: a.Sent.Method, Server: a.Server, Name: a.Name(), Ref: a.Sent.Ref, Definition: a.Definition}
	leased := d.deps.Decisions.LeaseValidity()
	if decision := d.deps.Decisions.Get(ctx, question); decision != nil {
		a.Decision, a.Validity = decision, leased
		return a, nil
	}
	a.Validity = d.deps.Decisions.NewValidity()
	resp, refused := d.decide(ctx, a, &policyv1.DecideCallRequest{Call: a.PolicyCall(a.Definition)})
	if refused == nil {
		a.Decision = d.deps.Decisions.Put(ctx, question, resp)
	}
	return a, refused
}

// Attest asks the policy service to evaluate a call to a tool with this definition, without using the cache. The policy
// service signs the decision for the approval service. The signature covers the approval's id and attempt number. If
// the id is empty, the decision is not bound to an approval.
func (d *Client) Attest(ctx context.Context, a Attempt, definition []byte, approval string, n int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
	return d.decide(ctx, a, &policyv1.DecideCallRequest{
		Call: a.PolicyCall(definition), Attest: &policyv1.Attest{ServerIdentity: a.Identity, ApprovalId: approval, Attempt: n},
	})
}

func (d *Client) decide(ctx context.Context, a Attempt, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, a.Principal), peerTimeout)
	defer cancel()
	resp, err := d.deps.Policy.DecideCall(ctx, req)
	if err != nil {
		d.deps.Log.WarnContext(ctx, "policy did not decide", "decision_id", a.ID, "error", err)
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	return resp, nil
}

// Refusal returns the refusal that follows from the decision. It returns nil if the policy allows the call or requires
// an approval for it. If the decision contains conditions that this gateway does not support, the call is refused.
func (a Attempt) Refusal() *refusal.Refusal {
	switch a.Decision.GetEffect() {
	case policyv1.Effect_EFFECT_ALLOW, policyv1.Effect_EFFECT_REQUIRE_APPROVAL:
		if a.Decision.GetHidden() { // a hidden tool is refused, whatever the effect of the decision is
			return a.Denied(commonv1.Code_CODE_TOOL_UNKNOWN)
		}
		if d := a.Decision; len(d.GetRedactions()) > 0 && !redaction.Supports(d.GetRedactions()) || slices.ContainsFunc(d.GetLimits(), isUnknown) {
			// If the gateway ignored the unsupported condition, it would allow more than the policy allows.
			refused := a.Denied(commonv1.Code_CODE_POLICY_UNAVAILABLE)
			refused.Message = "the policy asks for something that this gateway can't do yet; upgrade the gateway."
			return refused
		}
		return nil
	case policyv1.Effect_EFFECT_DENY:
		return a.Denied(a.Decision.GetCode())
	case policyv1.Effect_EFFECT_UNSPECIFIED:
		fallthrough
	default:
		return a.Denied(commonv1.Code_CODE_POLICY_UNAVAILABLE)
	}
}

// Denied returns a refusal with this code and with the decision's message and rule.
func (a Attempt) Denied(code commonv1.Code) *refusal.Refusal {
	if code == commonv1.Code_CODE_UNSPECIFIED {
		code = commonv1.Code_CODE_DENIED_BY_DEFAULT
	}
	refused := &refusal.Refusal{
		Code:           code,
		Message:        a.Decision.GetMessage(),
		Rule:           a.Decision.GetRule(),
		PolicyRevision: a.Decision.GetPolicyRevision(),
	}
	if code == commonv1.Code_CODE_SCOPE_MISSING {
		refused.Scopes = &refusal.Scopes{Needed: a.Decision.GetNeededScopes(), Missing: a.Decision.GetMissingScopes()}
	}
	// A call to a hidden tool must get the same answer as a call to a missing tool, so that the caller can't tell them
	// apart.
	if a.Decision.GetHidden() || refused.Code == commonv1.Code_CODE_TOOL_UNKNOWN {
		refused.Code, refused.Message, refused.Rule = commonv1.Code_CODE_TOOL_UNKNOWN, "", nil
	}
	return refused
}

// ApprovalStaysValid reports whether an approval of the call stays valid although the policy denies the call. This is
// the case if the calls are stopped until an operator resumes them, or if the caller must sign in with more scopes.
func (a Attempt) ApprovalStaysValid() bool {
	code := a.Decision.GetCode()
	return code == commonv1.Code_CODE_STOPPED || code == commonv1.Code_CODE_SCOPE_MISSING
}

// Denies reports whether the policy denies the call. It returns false if the policy allows the call and only the
// gateway refuses it.
func (a Attempt) Denies() bool {
	return a.Decision.GetEffect() == policyv1.Effect_EFFECT_DENY || a.Decision.GetHidden()
}

// Allows reports whether the policy allows the call and this gateway supports all conditions of the decision.
func (a Attempt) Allows() bool {
	return a.Decision.GetEffect() == policyv1.Effect_EFFECT_ALLOW && a.Refusal() == nil
}

// NeedsApproval reports whether the policy requires an approval for the call.
func (a Attempt) NeedsApproval() bool {
	return a.Decision.GetEffect() == policyv1.Effect_EFFECT_REQUIRE_APPROVAL && a.Refusal() == nil
}

// PolicyChanged returns the refusal for a call on which the policy service has just changed its decision.
func (a Attempt) PolicyChanged() *refusal.Refusal {
	if refused := a.Refusal(); refused != nil {
		return refused
	}
	return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE, Message: "the policy has just changed; make the call again."}
}
