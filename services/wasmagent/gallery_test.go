package wasmagent_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func (c client) gallery() wasmagentv1.GalleryServiceClient {
	return wasmagentv1.NewGalleryServiceClient(c.conn)
}

func customTemplate(id string) *wasmagentv1.Template {
	return &wasmagentv1.Template{Id: id, Name: "Mine", Category: "custom", Prompts: []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: "You are mine"}}}
}

// A new agent gets the values of its template. The caller's settings for the template take precedence over the
// template's values. Values in the request take precedence over both the settings and the template.
func TestCreateAgent_FromTemplate(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	c, other := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: customTemplate("mine")}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, createTime)
	defer cancel()
	made, err := c.gallery().CreateAgentFromTemplate(ctx, &wasmagentv1.CreateAgentFromTemplateRequest{Template: "mine"})
	if err != nil || made.GetTemplate() != "mine" || made.GetAgent().GetConfig().GetInstructions() != "You are mine" || made.GetAgent().GetTemplate() != "mine" {
		t.Fatalf("the agent is created as %v, %v", made, err)
	}
	active, err := c.gallery().GetActiveTemplate(c.ctx, &wasmagentv1.GetActiveTemplateRequest{})
	if err != nil || active.GetActiveId() != "mine" {
		t.Errorf("the active template is %v, %v", active, err)
	}
	if _, err := c.gallery().ConfigureTemplate(c.ctx, &wasmagentv1.ConfigureTemplateRequest{Config: &wasmagentv1.TemplateConfig{MaxTurns: new(int32(7))}}); err != nil {
		t.Error(err)
	}
	second, err := c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("mine")})
	if err != nil || second.GetAgent().GetConfig().GetMaxTurns() != 7 || second.GetSource() != "gallery" {
		t.Errorf("with the caller's settings the agent is created as %v, %v", second, err)
	}
	asked, err := c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("mine"), MaxTurns: new(int32(3)), Instructions: new("be brief")})
	if config := asked.GetAgent().GetConfig(); err != nil || config.GetMaxTurns() != 3 || config.GetInstructions() != "be brief" {
		t.Errorf("with values in the request the agent is created as %v, %v", asked, err)
	}
	seen, err := other.CreateAgent(other.ctx, &wasmagentv1.CreateAgentRequest{Template: new("mine")})
	if err != nil || seen.GetAgent().GetConfig().MaxTurns != nil {
		t.Errorf("for another principal of the tenant the agent is created as %v, %v", seen, err)
	}
	wide := customTemplate("wide")
	wide.Manifest = &wasmagentv1.Manifest{Clock: true}
	if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: wide}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("wide")})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "RIGHTS_NOT_OFFERED")
	_, err = c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("nope")})
	rpctest.WantStatus(t, err, codes.NotFound, "TEMPLATE_UNKNOWN")
}

func TestGallery_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	c, other := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	g := c.gallery()
	add := func(template *wasmagentv1.Template) error {
		_, err := g.AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: template})
		return err
	}
	if err := add(customTemplate("mine")); err != nil {
		t.Fatal(err)
	}
	_, unknown := g.LoadRvf(c.ctx, &wasmagentv1.LoadRvfRequest{Id: "nope"})
	_, noCategory := g.ListTemplatesByCategory(c.ctx, &wasmagentv1.ListTemplatesByCategoryRequest{Category: "nope"})
	_, noneActive := g.ConfigureTemplate(c.ctx, &wasmagentv1.ConfigureTemplateRequest{Config: &wasmagentv1.TemplateConfig{}})
	_, builtin := g.RemoveTemplate(c.ctx, &wasmagentv1.RemoveTemplateRequest{Id: "coder"})
	_, another := other.gallery().RemoveTemplate(other.ctx, &wasmagentv1.RemoveTemplateRequest{Id: "mine"})
	_, invalid := g.ImportTemplates(c.ctx, &wasmagentv1.ImportTemplatesRequest{TemplatesJson: `{"not":"array"}`})
	_, skill := c.ComposeAgent(c.ctx, &wasmagentv1.ComposeAgentRequest{Skills: []string{"nope"}})
	_, plugin := c.ComposeAgent(c.ctx, &wasmagentv1.ComposeAgentRequest{IncludePlugins: []string{"../../../etc"}})
	_, destructive := c.ComposeAgent(c.ctx, &wasmagentv1.ComposeAgentRequest{McpTools: []string{"memory_delete"}})
	_, glob := c.ComposeAgent(c.ctx, &wasmagentv1.ComposeAgentRequest{McpTools: []string{"*"}})
	for _, want := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{unknown, codes.NotFound, "TEMPLATE_UNKNOWN"},
		{noCategory, codes.NotFound, "CATEGORY_UNKNOWN"},
		{noneActive, codes.FailedPrecondition, "NO_ACTIVE_TEMPLATE"},
		{builtin, codes.FailedPrecondition, "TEMPLATE_BUILT_IN"},
		{another, codes.PermissionDenied, "TEMPLATE_OF_ANOTHER"},
		{add(customTemplate("mine")), codes.AlreadyExists, "TEMPLATE_EXISTS"},
		{invalid, codes.InvalidArgument, "TEMPLATES_INVALID"},
		{skill, codes.NotFound, "SKILL_UNKNOWN"},
		{plugin, codes.NotFound, "PLUGIN_UNKNOWN"},
		{destructive, codes.InvalidArgument, "TOOL_DESTRUCTIVE"},
		{glob, codes.InvalidArgument, "INVALID_REQUEST"},
	} {
		rpctest.WantStatus(t, want.err, want.code, want.reason)
	}
}

// The pages of a list together contain all templates, even if there are too many templates for one page or if their
// total size is too large for one page.
func TestListTemplates_PagesHaveAllTemplates(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	imported, err := c.gallery().ImportTemplates(c.ctx, &wasmagentv1.ImportTemplatesRequest{
		TemplatesJson: `[{"id":"a","name":"A","category":"custom","prompts":[{"name":"p","system_prompt":"x"}]},{"id":"b","name":"B","category":"custom","prompts":[{"name":"p","system_prompt":"x"}]}]`,
	})
	if err != nil || imported.GetImportedCount() != 2 {
		t.Fatalf("imported %v, %v", imported, err)
	}
	var seen []string
	for token, first := "", true; first || token != ""; first = false {
		resp, err := c.gallery().ListTemplates(c.ctx, &wasmagentv1.ListTemplatesRequest{PageSize: 3, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, template := range resp.GetTemplates() {
			seen = append(seen, template.GetId())
		}
		token = resp.GetNextPageToken()
	}
	if len(seen) != 7 || seen[5] != "a" || seen[6] != "b" { // the orchestrator is omitted if no agent server is configured
		t.Errorf("the pages have %v", seen)
	}
	for i := range 2 {
		large := customTemplate("large-" + string(rune('a'+i)))
		for range 28 {
			large.Prompts = append(large.Prompts, &wasmagentv1.TemplatePrompt{Name: "p", SystemPrompt: strings.Repeat("x", 64<<10)})
		}
		if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: large}); err != nil {
			t.Fatal(err)
		}
	}
	count, pages := 0, 0
	for token, first := "", true; first || token != ""; first = false {
		resp, err := c.gallery().ExportTemplates(c.ctx, &wasmagentv1.ExportTemplatesRequest{PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		count, pages, token = count+len(resp.GetExported()), pages+1, resp.GetNextPageToken()
	}
	if count != 4 || pages != 2 {
		t.Errorf("%d templates are exported in %d pages", count, pages)
	}
}

// Added templates survive a restart. After an operator accepts an imported template, agents can be created from it.
func TestTemplates_SurviveRestartAndNeedAcceptance(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	c := l.onBehalfOfUser(t, "ana")
	if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: customTemplate("mine")}); err != nil {
		t.Fatal(err)
	}
	foreign := `[{"id":"foreign","name":"F","category":"c","quarantined":false,"prompts":[{"name":"p","system_prompt":"Do as I say."}],"manifest":{"tools":[{"server":"demo","tool":"pay"}]}}]`
	if _, err := c.gallery().ImportTemplates(c.ctx, &wasmagentv1.ImportTemplatesRequest{TemplatesJson: foreign}); err != nil {
		t.Fatal(err)
	}
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	seen := make(map[string]*wasmagentv1.TemplateSummary)
	list, err := c.gallery().ListTemplates(c.ctx, new(wasmagentv1.ListTemplatesRequest))
	if err != nil {
		t.Fatal(err)
	}
	for _, summary := range list.GetTemplates() {
		seen[summary.GetId()] = summary
	}
	if f := seen["foreign"]; seen["mine"] == nil || seen["mine"].GetQuarantined() || !f.GetQuarantined() || len(f.GetEffectiveRights().GetTools()) != 1 || len(f.GetEffectiveTools()) == 0 {
		t.Errorf("after a restart there are %v", seen)
	}
	c.create(&wasmagentv1.CreateAgentRequest{Template: new("mine")})
	_, err = c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("foreign")})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "TEMPLATE_QUARANTINED")
	operator := l.withToken(t, "operator")
	shown, err := operator.gallery().GetTemplate(operator.ctx, &wasmagentv1.GetTemplateRequest{Id: "foreign"})
	if err != nil || shown.GetDigest() != seen["foreign"].GetDigest() || len(shown.GetTemplate().GetManifest().GetTools()) != 1 {
		t.Fatalf("the whole template is %v, %v", shown, err)
	}
	accepts := &wasmagentv1.AcceptTemplateRequest{Id: "foreign", Digest: shown.GetDigest()}
	_, err = c.gallery().AcceptTemplate(c.ctx, accepts)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
	_, err = operator.gallery().AcceptTemplate(operator.ctx, &wasmagentv1.AcceptTemplateRequest{Id: "foreign"})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	_, err = operator.gallery().AcceptTemplate(operator.ctx, &wasmagentv1.AcceptTemplateRequest{Id: "foreign", Digest: seen["mine"].GetDigest()})
	rpctest.WantStatus(t, err, codes.Aborted, "TEMPLATE_CHANGED")
	if accepted, err := operator.gallery().AcceptTemplate(operator.ctx, accepts); err != nil || accepted.GetTemplate().GetQuarantined() {
		t.Fatal(accepted, err)
	}
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	c.create(&wasmagentv1.CreateAgentRequest{Template: new("foreign")})
	// An operator's acceptance applies only to the accepted content. It does not apply if the template's owner adds
	// other content with the same id.
	if _, err := c.gallery().RemoveTemplate(c.ctx, &wasmagentv1.RemoveTemplateRequest{Id: "foreign"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.gallery().AddTemplate(c.ctx, &wasmagentv1.AddTemplateRequest{Template: customTemplate("foreign")}); err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Template: new("foreign")})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "TEMPLATE_QUARANTINED")
	l.close()
	l.start()
	operator = l.withToken(t, "operator")
	_, err = operator.gallery().AcceptTemplate(operator.ctx, accepts)
	rpctest.WantStatus(t, err, codes.Aborted, "TEMPLATE_CHANGED")
}
