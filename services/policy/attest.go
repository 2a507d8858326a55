package policy

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// attest signs the decision on a call. The caller must be a service of the mesh. The principal in the signed decision
// is the principal that this service asserts. The policy service can't verify the tool definition and the server's
// identity, so it signs the values that the gateway sent. The approval service refuses the call if these values differ
// from the definition and the identity that approvers see.
func (s *Service) attest(ctx context.Context, set *activeSet, req *policyv1.DecideCallRequest, d *policyv1.Decision) (*policyv1.SignedDecision, error) {
	principal := authn.CallerOf(ctx).Principal
	if principal == nil {
		return nil, errAttest
	}
	if req.GetCall().GetMethod() == changeMethod { // only the policy service itself requests and claims approvals of policy changes
		return nil, errAttestChange
	}
	return s.sign(set, principal, &approvalv1.BoundCall{Call: req.GetCall(), ServerIdentity: req.GetAttest().GetServerIdentity()}, d,
		&policyv1.DecisionStatement{ApprovalId: req.GetAttest().GetApprovalId(), Attempt: req.GetAttest().GetAttempt()})
}

// sign signs the decision on a principal's call. use names the approval, and the attempt to make the call, for which
// the signature is valid.
func (s *Service) sign(set *activeSet, principal *identityv1.Principal, call *approvalv1.BoundCall, d *policyv1.Decision, use *policyv1.DecisionStatement) (*policyv1.SignedDecision, error) {
	digest, err := binding.DigestIgnoringDefinition(principal, call.GetCall())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	return s.deps.Signer.Sign(&policyv1.DecisionStatement{
		CallDigest: digest[:], PrincipalDigest: signeddecision.PrincipalDigest(principal),
		ServerIdentity: call.GetServerIdentity(), DefinitionDigest: call.GetCall().GetDefinitionDigest(),
		ApprovalId: use.GetApprovalId(), Attempt: use.GetAttempt(),
		Decision: d, Activation: set.activation(), Time: timestamppb.Now(),
	})
}
