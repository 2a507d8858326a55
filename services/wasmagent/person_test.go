package wasmagent_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// botOf returns an agent that uses the connections of a person. All these agents have the same subject and agent.
func botOf(person string) *identityv1.Principal {
	p := rpctest.Principal("default", "bot")
	p.Agent, p.Owner, p.Person = "dev", person, person
	return p
}

// newRecordingService returns a service whose gateway records the calls of the agents.
func newRecordingService(t *testing.T, seen *recordedCalls) testService {
	t.Helper()
	return newTestServiceWith(t, func(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		seen.note(ctx, req)
		return answerOf("done"), nil
	})
}

// No caller makes an agent act with the account of another person: neither an operator, nor a caller with the same
// subject and agent as the creator. An operator can still read, stop, resume and copy the agent. The copy uses the account of the
// operator.
func TestPrompt_UsesAPersonsConnectionsOnlyForThisPerson(t *testing.T) {
	t.Parallel()
	var seen recordedCalls
	m := newRecordingService(t, &seen)
	anas := m.onBehalfOf(t, botOf("ana"))
	id := anas.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("add_*")})

	operator := m.withToken(t, "operator")
	_, _, err := operator.prompt(id, "tool demo add_note {}")
	rpctest.WantStatus(t, err, codes.PermissionDenied, "PERSON_DIFFERS")
	if err == nil || !strings.Contains(err.Error(), "connections to servers of ana") || !strings.Contains(err.Error(), "sluice agents fork "+id) {
		t.Errorf("the refusal says %v", err)
	}
	_, err = operator.CallTool(t.Context(), &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, ToolInput: `{"path":"a","content":"x"}`})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "PERSON_DIFFERS")
	if _, err = operator.CallTool(t.Context(), &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES}); err != nil {
		t.Errorf("an operator can't list the files: %v", err)
	}
	for _, person := range []string{"ben", ""} {
		other := m.onBehalfOf(t, botOf(person))
		_, _, err = other.prompt(id, "tool demo add_note {}")
		rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
		listed, err := other.ListAgents(other.ctx, new(wasmagentv1.ListAgentsRequest))
		if err != nil || len(listed.GetAgents()) != 0 || listed.GetCount() != 0 {
			t.Errorf("the person %q sees %v, %v", person, listed, err)
		}
	}
	if len(seen.by) != 0 {
		t.Fatalf("the agent has made calls: %v", seen.made)
	}

	operator.state(id)
	if _, err := operator.StopAgent(t.Context(), &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
		t.Error(err)
	}
	if _, err := operator.ResumeAgent(t.Context(), &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Error(err)
	}
	anas.mustPrompt(id, "tool demo add_note {}")
	copied, err := operator.ForkAgent(t.Context(), &wasmagentv1.ForkAgentRequest{AgentId: id})
	if err != nil {
		t.Fatal(err)
	}
	operator.mustPrompt(copied.GetAgent().GetId(), "tool demo add_note {}")
	for i, want := range []string{"ana", "operator"} {
		if got := principal.ConnectionsOf(seen.by[i]); got != (principal.Key{Tenant: "default", Subject: want}) {
			t.Errorf("call %d uses the account of %v, want %s", i, got, want)
		}
	}
}

// The calls of an agent use the account of its creator's person, and of no one if the creator has only an owner.
func TestCall_HasThePersonOfTheCreator(t *testing.T) {
	t.Parallel()
	var seen recordedCalls
	m := newRecordingService(t, &seen)
	owned := botOf("ana")
	owned.Person = ""
	for _, c := range []struct {
		name   string
		client client
		person string
	}{
		{"an agent of a person", m.onBehalfOf(t, botOf("ana")), "ana"},
		{"an agent with an owner only", m.onBehalfOf(t, owned), ""},
		{"a person", m.withToken(t, "operator"), "operator"},
	} {
		id := c.client.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("add_*")})
		c.client.mustPrompt(id, "tool demo add_note {}")
		got := seen.by[len(seen.by)-1]
		if principal.ConnectionsOf(got).Subject != c.person || got.GetPerson() != c.person || got.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT {
			t.Errorf("%s: the principal of the call is %v", c.name, got)
		}
	}
}
