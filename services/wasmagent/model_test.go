package wasmagent_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

type question struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"messages"`
}

// modelRecorder is a gateway that records and answers each question to a model.
type modelRecorder struct {
	mu    sync.Mutex
	asked []question
}

func (g *modelRecorder) answer(_ context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
	var q question
	if err := json.Unmarshal([]byte(req.GetArgumentsJson()), &q); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, q)
	return &gatewayv1.ToolAnswer{
		Decision:   &gatewayv1.DecisionInfo{Id: "d"},
		ResultJson: `{"content":[{"type":"text","text":"yes"}],"structuredContent":{"content":"yes","inputTokens":1,"outputTokens":1,"cost":"0"}}`,
	}, nil
}

// modelGateway is a gateway that lists no tools.
type modelGateway struct{ fakeGateway }

// ListTools implements gatewayv1.GatewayServiceClient.
func (modelGateway) ListTools(context.Context, *gatewayv1.ListToolsRequest, ...grpc.CallOption) (*gatewayv1.ListToolsResponse, error) {
	return new(gatewayv1.ListToolsResponse), nil
}

func (g *modelRecorder) last(t *testing.T) question {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.asked) == 0 {
		t.Fatal("no model was asked")
	}
	return g.asked[len(g.asked)-1]
}

func newServiceWithModel(t *testing.T, accepts ...ed25519.PublicKey) (testService, *modelRecorder) {
	t.Helper()
	gateway := new(modelRecorder)
	s := openServiceAt(t, wasmagent.Config{Data: t.TempDir(), Model: "script:lines", Server: "helpers", AcceptedKeys: accepts}, modelGateway{fakeGateway{answer: gateway.answer}})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return testService{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, s, rpctest.Options{})}, gateway
}

// An agent whose configuration has no model uses the model in the configuration key agents.model, whether the agent was
// created from a manifest or a template. An agent that was created from an archive also uses this model if no
// configured provider has the model in the archive.
func TestModel_DefaultIsUsedForAllAgents(t *testing.T) {
	t.Parallel()
	elsewhere := newTestService(t).onBehalfOfUser(t, "ana")
	archived, key := elsewhere.exportArchive(elsewhere.create(&wasmagentv1.CreateAgentRequest{Model: new("elsewhere:m")}))
	m, gateway := newServiceWithModel(t, key)
	c := m.onBehalfOfUser(t, "ana")
	withTools := customTemplate("with-tools")
	withTools.Manifest = toolManifest("t")
	for _, template := range []*wasmagentv1.Template{customTemplate("plain"), withTools} {
		if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: template}); err != nil {
			t.Fatal(err)
		}
	}
	made := map[string]string{
		"nothing":                   c.create(new(wasmagentv1.CreateAgentRequest)),
		"a manifest":                c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")}),
		"a shipped template":        c.create(&wasmagentv1.CreateAgentRequest{Template: new("coder")}),
		"a template":                c.create(&wasmagentv1.CreateAgentRequest{Template: new("plain")}),
		"a template with rights":    c.create(&wasmagentv1.CreateAgentRequest{Template: new("with-tools")}),
		"the guest that is named":   c.create(&wasmagentv1.CreateAgentRequest{Guest: new("agent")}),
		"a template and a manifest": c.create(&wasmagentv1.CreateAgentRequest{Template: new("coder"), Manifest: toolManifest("t")}),
	}
	arrived, err := c.importArchive(archived, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	made["an archive"] = arrived.GetAgent().GetId()
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: made["an archive"]}); err != nil {
		t.Fatal(err)
	}
	list, err := c.ListAgents(c.ctx, new(wasmagentv1.ListAgentsRequest))
	if err != nil {
		t.Fatal(err)
	}
	for from, id := range made {
		if answer := c.mustPrompt(id, "Is it so?").GetResponse(); answer != "yes" || gateway.last(t).Model != "script:lines" {
			t.Errorf("the agent created from %s answers %q, and the model %q was asked", from, answer, gateway.last(t).Model)
		}
		if info := c.state(id).GetInfo(); info.GetModel() != "script:lines" || info.GetGuest() != "agent" {
			t.Errorf("the agent created from %s is shown with the model %q and the guest %q", from, info.GetModel(), info.GetGuest())
		}
		if at := slices.IndexFunc(list.GetAgents(), func(a *wasmagentv1.Agent) bool { return a.GetId() == id }); list.GetAgents()[at].GetModel() != "script:lines" {
			t.Errorf("the agent created from %s is listed with the model %q", from, list.GetAgents()[at].GetModel())
		}
	}
	named := c.create(&wasmagentv1.CreateAgentRequest{Model: new("script:other"), Manifest: toolManifest("t")})
	if c.mustPrompt(named, "Is it so?"); gateway.last(t).Model != "script:other" {
		t.Errorf("an agent with its own model asks %q", gateway.last(t).Model)
	}
	script := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("script")})
	if answer := c.mustPrompt(script, "say hello\nask Is it so?").GetResponse(); answer != "hello\nyes" || gateway.last(t).Model != "script:lines" {
		t.Errorf("a script answers %q", answer)
	}
}

// The model receives the skills of a template, even if the request replaces the template's instructions.
func TestSkills_AreSentToModel(t *testing.T) {
	t.Parallel()
	m, gateway := newServiceWithModel(t)
	c := m.onBehalfOfUser(t, "ana")
	for _, instructions := range []*string{nil, new("Be brief.")} {
		id := c.create(&wasmagentv1.CreateAgentRequest{Template: new("coder"), Instructions: instructions})
		c.mustPrompt(id, "/refactor main.go")
		sent := gateway.last(t).Messages
		if len(sent) < 2 || sent[0].Role != "system" || !strings.Contains(sent[0].Content, "/refactor: ") || !strings.Contains(sent[0].Content, "Say first what must stay the same") || sent[1].Content != "/refactor main.go" {
			t.Errorf("the model gets %+v", sent)
		}
		if instructions != nil && !strings.HasPrefix(sent[0].Content, "Be brief.\n\n") {
			t.Errorf("the instructions are %.40q", sent[0].Content)
		}
	}
	large := customTemplate("large")
	for range 2 {
		large.Skills = append(large.Skills, &wasmagentv1.TemplateSkill{Name: "s", Content: strings.Repeat("x", 40<<10)})
	}
	if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: large}); err != nil {
		t.Fatal(err)
	}
	_, err := c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("large")})
	rpctest.WantStatus(t, err, 3, "INSTRUCTIONS_TOO_LARGE")
}

// The built-in orchestrator template has rights to create and prompt agents through the MCP server that the service's
// configuration names. If the configuration names no server, the template is omitted.
func TestTemplates_OrchestratorHasItsRights(t *testing.T) {
	t.Parallel()
	m, _ := newServiceWithModel(t)
	for c, wants := range map[client]int{m.onBehalfOfUser(t, "ana"): 6, newTestService(t).onBehalfOfUser(t, "ana"): 5} {
		list, err := c.gallery().ListTemplates(c.ctx, new(wasmagentv1.ListTemplatesRequest))
		if err != nil || len(list.GetTemplates()) != wants {
			t.Fatalf("the templates are %v, %v", list, err)
		}
		for _, template := range list.GetTemplates() {
			rights := template.GetEffectiveRights()
			if leads := template.GetId() == "swarm-orchestrator"; leads != (rights.GetChildren().GetCount() == 8) || leads != (len(rights.GetTools()) > 0) {
				t.Errorf("%s has %v", template.GetId(), rights)
			}
		}
	}
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Template: new("swarm")})
	for _, right := range c.state(id).GetManifest().GetTools() {
		if right.GetServer() != "helpers" || !strings.HasPrefix(right.GetTool(), "wasm_agent_") {
			t.Errorf("the agent has the right %v", right)
		}
	}
	made := rpctest.Principal("default", "agent:default/"+id)
	made.Owner, made.Chain = "ana", append(made.Chain, rpctest.Principal("default", "ana"))
	child := m.onBehalfOf(t, made).create(new(wasmagentv1.CreateAgentRequest))
	if answer := m.onBehalfOf(t, made).mustPrompt(child, "Is it so?").GetResponse(); answer != "yes" {
		t.Errorf("an agent that it created answers %q", answer)
	}
}
