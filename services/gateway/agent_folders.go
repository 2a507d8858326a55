package gateway

import (
	"context"
	"fmt"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// agentsPage is the number of agents in each page that the gateway requests.
const agentsPage = 1000

// restorableAgents returns the subjects of a tenant's agents that have not terminated, or that can still be restored.
func (s *Service) restorableAgents(ctx context.Context, tenant string) (map[string]bool, error) {
	// The request is made on behalf of a viewer, because viewers may see all agents of their tenant.
	ctx = authn.OnBehalfOf(ctx, &identityv1.Principal{Tenant: tenant, Subject: principal.Catalogue, Role: authv1.TokenRole_TOKEN_ROLE_VIEWER})
	req, client := &wasmagentv1.ListAgentsRequest{PageSize: agentsPage, States: agentStates()}, wasmagentv1.NewAgentServiceClient(s.deps.Agents)
	out := make(map[string]bool)
	for {
		resp, err := client.ListAgents(ctx, req)
		if err != nil {
			return nil, fmt.Errorf("list the agents of tenant %s: %w", tenant, err)
		}
		for _, a := range resp.GetAgents() {
			if a.GetState() != wasmagentv1.AgentState_AGENT_STATE_TERMINATED || time.Now().Before(a.GetRestorableUntil().AsTime()) {
				out[principal.Agent+tenant+"/"+a.GetId()] = true
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return out, nil
		}
	}
}

func agentStates() (out []wasmagentv1.AgentState) {
	for state := range wasmagentv1.AgentState_name {
		if state != int32(wasmagentv1.AgentState_AGENT_STATE_UNSPECIFIED) {
			out = append(out, wasmagentv1.AgentState(state))
		}
	}
	return out
}
