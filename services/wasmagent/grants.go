package wasmagent

import (
	"context"
	"fmt"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
)

// GrantRights implements wasmagentv1.AgentServiceServer. An agent can't effectively grant more rights than it has,
// because each use of a right is also checked against the rights of every agent in the delegation chain.
func (s *Service) GrantRights(ctx context.Context, req *wasmagentv1.GrantRightsRequest) (*wasmagentv1.GrantRightsResponse, error) {
	if req.Rights == nil && len(req.GetWithdraw()) == 0 {
		return nil, toStatus(errGrantEmpty)
	}
	caller := actingPrincipal(ctx)
	if isInChain(agent.Subject(caller.GetTenant(), req.GetAgentId()), caller) {
		return nil, toStatus(errGrantSelf)
	}
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if req.GetRights().GetFiles() != nil {
		return nil, toStatus(fmt.Errorf("%w: files can't be granted", errRightsNotOffered))
	}
	if err := checkOffered(req.GetRights()); err != nil {
		return nil, toStatus(err)
	}
	if countConditions(a.Rights().Union(time.Now()))+countConditions(req.GetRights()) > manifest.MaxConditions {
		return nil, toStatus(errTooManyConditions)
	}
	var until time.Time
	if req.GetExpiresIn() != nil {
		until = time.Now().Add(req.GetExpiresIn().AsDuration())
	}
	grant, err := a.Grant(callerOf(ctx), req.GetRights(), until, req.GetWithdraw(), req.GetReason())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.GrantRightsResponse{Grant: grant, Manifest: a.Rights().Union(time.Now())}, nil
}

func countConditions(m *wasmagentv1.Manifest) (n int) {
	for _, right := range m.GetTools() {
		n += len(right.GetConditions())
	}
	return n
}
