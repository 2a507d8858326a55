package policy

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/attest"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
)

// attest signs a decision about a call of a service's principal. The definition and the server's identity are not
// known to the policy service, so it signs them as the gateway sent them; the approval service compares them with what
// approvers see.
func (s *Service) attest(ctx context.Context, set *activeSet, req *policyv1.DecideCallRequest, d *policyv1.Decision) (*policyv1.SignedDecision, error) {
	who := authn.CallerOf(ctx).Principal
	if who == nil {
		return nil, errAttest
	}
	digest, err := binding.Alike(who, req.GetCall())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errParams, err)
	}
	return s.deps.Signer.Sign(&policyv1.DecisionStatement{
		CallDigest: digest[:], PrincipalDigest: attest.Principal(who),
		ServerIdentity: req.GetAttest().GetServerIdentity(), DefinitionDigest: req.GetCall().GetDefinitionDigest(),
		ApprovalId: req.GetAttest().GetApprovalId(), Attempt: req.GetAttest().GetAttempt(),
		Decision: d, Activation: set.activation(), Time: timestamppb.Now(),
	})
}
