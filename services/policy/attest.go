package policy

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
)

// attest signs the decision about a call. The caller of attest must be a service, and the call's principal is the
// principal that this service asserts. The policy service can't verify the definition and the server's identity, so it
// signs them as the gateway sent them. The approval service compares them with the definition and the identity that
// approvers see.
func (s *Service) attest(ctx context.Context, set *activeSet, req *policyv1.DecideCallRequest, d *policyv1.Decision) (*policyv1.SignedDecision, error) {
	principal := authn.CallerOf(ctx).Principal
	if principal == nil {
		return nil, errAttest
	}
	digest, err := binding.DigestIgnoringDefinition(principal, req.GetCall())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	return s.deps.Signer.Sign(&policyv1.DecisionStatement{
		CallDigest: digest[:], PrincipalDigest: signeddecision.PrincipalDigest(principal),
		ServerIdentity: req.GetAttest().GetServerIdentity(), DefinitionDigest: req.GetCall().GetDefinitionDigest(),
		ApprovalId: req.GetAttest().GetApprovalId(), Attempt: req.GetAttest().GetAttempt(),
		Decision: d, Activation: set.activation(), Time: timestamppb.Now(),
	})
}
