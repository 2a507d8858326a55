package agent_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
)

// An agent that acts for a person creates a sandboxed agent. Blocks and approvals of the sandboxed agent's calls also
// apply to the actor and the prior actors.
func TestPrincipal_ContainsTheActorsOfItsCreator(t *testing.T) {
	t.Parallel()
	actor := func(name string) *identityv1.Principal {
		return &identityv1.Principal{
			Tenant: "default", Subject: "act:corp/" + name + "/corp/ana", Agent: name, Owner: "corp/ana", Actor: "corp/" + name,
			Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: "corp", Client: "c1", Scopes: []string{"mcp"}, Servers: []string{"github"}, Groups: []string{"sre"},
		}
	}
	creator := proto.CloneOf(actor("bot"))
	creator.Chain = []*identityv1.Principal{actor("planner")}
	got := (&agent.Spec{ID: "1", Guest: "coder", Creator: creator}).Principal()
	want := &identityv1.Principal{
		Tenant: "default", Subject: "agent:default/1", Agent: "coder", Owner: "corp/ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT,
		Chain: []*identityv1.Principal{actor("bot"), actor("planner")},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
