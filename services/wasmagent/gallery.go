package wasmagent

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/gallery"
)

const maxSearchResults = 100

// galleryServer implements wasmagentv1.GalleryServiceServer.
type galleryServer struct {
	wasmagentv1.UnimplementedGalleryServiceServer
	*Service
}

func templateSummaries(all []*wasmagentv1.Template) []*wasmagentv1.TemplateSummary {
	out := make([]*wasmagentv1.TemplateSummary, 0, len(all))
	for _, t := range all {
		out = append(out, &wasmagentv1.TemplateSummary{
			Id: t.GetId(), Name: t.GetName(), Description: t.GetDescription(), Category: t.GetCategory(), Tags: t.GetTags(),
			Version: t.GetVersion(), Author: t.GetAuthor(), Builtin: t.GetBuiltin(), AddedBy: t.GetAddedBy(),
			Quarantined: t.GetQuarantined(), EffectiveTools: builtinTools, EffectiveRights: t.GetManifest(), Digest: gallery.Digest(t),
		})
	}
	return out
}

// currentGallery returns the gallery. It contains every change in the caller's tenant that this process or another
// replica has acknowledged.
func (s *Service) currentGallery(ctx context.Context) (*gallery.Gallery, error) {
	if !s.store.IsShared {
		return s.gallery, nil
	}
	return s.gallery, s.gallery.Refresh(ctx, actingPrincipal(ctx).GetTenant())
}

// ListTemplates implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ListTemplates(ctx context.Context, req *wasmagentv1.ListTemplatesRequest) (*wasmagentv1.ListTemplatesResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	all := templateSummaries(templates.List(actingPrincipal(ctx).GetTenant()))
	part, next, err := sizedPage(all, req.GetPageToken(), req.GetPageSize())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ListTemplatesResponse{Templates: part, NextPageToken: next, Count: int32(len(all))}, nil
}

// sizedPage returns a page of a list, and the token of the next page. It shortens the page if the response would
// otherwise be too large.
func sizedPage[M proto.Message](all []M, token string, size int32) (part []M, next string, err error) {
	part, next, err = pageOf(all, token, size)
	if fitting := prefixWithin(part, maxResponseBytes); err == nil && len(fitting) < len(part) {
		_, next, err = pageOf(all, token, int32(len(fitting)))
		part = fitting
	}
	return part, next, err
}

// SearchTemplates implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) SearchTemplates(ctx context.Context, req *wasmagentv1.SearchTemplatesRequest) (*wasmagentv1.SearchTemplatesResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	hits := templates.Search(actingPrincipal(ctx).GetTenant(), req.GetQuery())
	return &wasmagentv1.SearchTemplatesResponse{Results: hits[:min(len(hits), maxSearchResults)], Count: int32(len(hits))}, nil
}

// CreateAgentFromTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) CreateAgentFromTemplate(ctx context.Context, req *wasmagentv1.CreateAgentFromTemplateRequest) (*wasmagentv1.CreateAgentFromTemplateResponse, error) {
	resp, err := g.CreateAgent(ctx, &wasmagentv1.CreateAgentRequest{Template: new(req.GetTemplate())})
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.CreateAgentFromTemplateResponse{Agent: resp.GetAgent(), Template: resp.GetAgent().GetTemplate()}, nil
}

// LoadRvf implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) LoadRvf(ctx context.Context, req *wasmagentv1.LoadRvfRequest) (*wasmagentv1.LoadRvfResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	t, err := templates.Get(actingPrincipal(ctx).GetTenant(), req.GetId())
	if err != nil {
		return nil, toStatus(err)
	}
	packed, err := gallery.Container(gallery.PartsOf(t))
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.LoadRvfResponse{Id: t.GetId(), Rvf: packed, SizeBytes: int32(len(packed))}, nil
}

// ConfigureTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ConfigureTemplate(ctx context.Context, req *wasmagentv1.ConfigureTemplateRequest) (*wasmagentv1.ConfigureTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	id, err := templates.Configure(principal.Of(actingPrincipal(ctx)), req.GetConfig())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ConfigureTemplateResponse{ActiveId: id, Config: req.GetConfig()}, nil
}

// ListCategories implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ListCategories(ctx context.Context, _ *wasmagentv1.ListCategoriesRequest) (*wasmagentv1.ListCategoriesResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ListCategoriesResponse{Categories: templates.Categories(actingPrincipal(ctx).GetTenant())}, nil
}

// ListTemplatesByCategory implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ListTemplatesByCategory(ctx context.Context, req *wasmagentv1.ListTemplatesByCategoryRequest) (*wasmagentv1.ListTemplatesByCategoryResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	all, err := templates.InCategory(actingPrincipal(ctx).GetTenant(), req.GetCategory())
	if err != nil {
		return nil, toStatus(err)
	}
	part, next, err := sizedPage(templateSummaries(all), req.GetPageToken(), req.GetPageSize())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ListTemplatesByCategoryResponse{Category: req.GetCategory(), Templates: part, NextPageToken: next}, nil
}

// AddTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) AddTemplate(ctx context.Context, req *wasmagentv1.AddTemplateRequest) (*wasmagentv1.AddTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	source := gallery.FromAuthor
	if isOperator(actingPrincipal(ctx)) {
		source = gallery.FromOperator
	}
	if err := templates.Add(ctx, principal.Person(actingPrincipal(ctx)), source, req.GetTemplate()); err != nil {
		return nil, toStatus(err)
	}
	resp := &wasmagentv1.AddTemplateResponse{Id: req.GetTemplate().GetId()}
	added, err := templates.Get(actingPrincipal(ctx).GetTenant(), resp.GetId())
	if err == nil { // if this fails, another call has already removed the template
		resp.Quarantined = added.GetQuarantined()
	}
	return resp, nil
}

// RemoveTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) RemoveTemplate(ctx context.Context, req *wasmagentv1.RemoveTemplateRequest) (*wasmagentv1.RemoveTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	caller := actingPrincipal(ctx)
	if err := templates.Remove(ctx, principal.Person(caller), isOperator(caller), req.GetId()); err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.RemoveTemplateResponse{Id: req.GetId()}, nil
}

// ImportTemplates implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ImportTemplates(ctx context.Context, req *wasmagentv1.ImportTemplatesRequest) (*wasmagentv1.ImportTemplatesResponse, error) {
	all, err := gallery.Read([]byte(req.GetTemplatesJson()))
	if err != nil {
		return nil, toStatus(err)
	}
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	source := gallery.FromImport
	if isOperator(actingPrincipal(ctx)) {
		source = gallery.FromOperator
	}
	if err := templates.Add(ctx, principal.Person(actingPrincipal(ctx)), source, all...); err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ImportTemplatesResponse{ImportedCount: int32(len(all))}, nil
}

// GetTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) GetTemplate(ctx context.Context, req *wasmagentv1.GetTemplateRequest) (*wasmagentv1.GetTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	t, err := templates.Get(actingPrincipal(ctx).GetTenant(), req.GetId())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.GetTemplateResponse{Template: t, Digest: gallery.Digest(t)}, nil
}

// AcceptTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) AcceptTemplate(ctx context.Context, req *wasmagentv1.AcceptTemplateRequest) (*wasmagentv1.AcceptTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	t, err := templates.Accept(ctx, actingPrincipal(ctx).GetTenant(), req.GetId(), req.GetDigest())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.AcceptTemplateResponse{Template: templateSummaries([]*wasmagentv1.Template{t})[0]}, nil
}

// ExportTemplates implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) ExportTemplates(ctx context.Context, req *wasmagentv1.ExportTemplatesRequest) (*wasmagentv1.ExportTemplatesResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	part, next, err := sizedPage(templates.Added(actingPrincipal(ctx).GetTenant()), req.GetPageToken(), req.GetPageSize())
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ExportTemplatesResponse{Exported: part, NextPageToken: next}, nil
}

// GetActiveTemplate implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) GetActiveTemplate(ctx context.Context, _ *wasmagentv1.GetActiveTemplateRequest) (*wasmagentv1.GetActiveTemplateResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := new(wasmagentv1.GetActiveTemplateResponse)
	if id, _, err := templates.Active(principal.Of(actingPrincipal(ctx))); err == nil {
		resp.ActiveId = new(id)
	}
	return resp, nil
}

// GetTemplateConfig implements wasmagentv1.GalleryServiceServer.
func (g galleryServer) GetTemplateConfig(ctx context.Context, _ *wasmagentv1.GetTemplateConfigRequest) (*wasmagentv1.GetTemplateConfigResponse, error) {
	templates, err := g.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	_, config, err := templates.Active(principal.Of(actingPrincipal(ctx)))
	if err != nil {
		config = new(wasmagentv1.TemplateConfig)
	}
	return &wasmagentv1.GetTemplateConfigResponse{Config: config}, nil
}

// applyTemplate fills in the missing fields of a request for a new agent from the request's template. A value in the
// request takes precedence over the caller's setting for the template, and the setting takes precedence over the
// template's own value. applyTemplate also returns the id of the template.
func (s *Service) applyTemplate(ctx context.Context, caller *identityv1.Principal, req *wasmagentv1.CreateAgentRequest) (*wasmagentv1.CreateAgentRequest, string, error) {
	if req.Template == nil {
		return req, "", nil
	}
	templates, err := s.currentGallery(ctx)
	if err != nil {
		return nil, "", err
	}
	t, err := templates.Get(caller.GetTenant(), req.GetTemplate())
	if err != nil {
		return nil, "", err
	}
	if t.GetQuarantined() {
		return nil, "", fmt.Errorf("%w: %s", gallery.ErrQuarantined, t.GetId())
	}
	config, out := templates.Configured(principal.Of(caller), t.GetId()), proto.CloneOf(req)
	if out.Instructions == nil {
		out.Instructions = new(t.GetPrompts()[0].GetSystemPrompt())
		if config.Instructions != nil {
			out.Instructions = config.Instructions
		}
	}
	text, err := withSkills(out.GetInstructions(), t.GetSkills())
	if err != nil {
		return nil, "", err
	}
	out.Instructions = &text
	if out.GetManifest() == nil {
		out.Manifest = proto.CloneOf(t.GetManifest())
	}
	if out.MaxTurns == nil {
		out.MaxTurns = config.MaxTurns
	}
	if out.Model == nil {
		out.Model = config.Model
	}
	return out, t.GetId(), nil
}

// maxInstructionBytes limits the size of an agent's instructions, in bytes.
const maxInstructionBytes = 64 << 10

// withSkills returns the instructions, followed by a description of each skill of a template.
func withSkills(instructions string, skills []*wasmagentv1.TemplateSkill) (string, error) {
	if len(skills) == 0 {
		return instructions, nil
	}
	var text strings.Builder
	text.WriteString(instructions)
	text.WriteString("\n\nYou have these skills. When a prompt begins with the word of a skill, do what the skill says with the rest of the prompt.")
	for _, s := range skills {
		fmt.Fprintf(&text, "\n\n%s: %s\n%s", cmp.Or(s.GetTrigger(), s.GetName()), s.GetDescription(), s.GetContent())
	}
	if text.Len() > maxInstructionBytes {
		return "", errInstructionsTooLarge
	}
	return text.String(), nil
}

// ComposeAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ComposeAgent(ctx context.Context, req *wasmagentv1.ComposeAgentRequest) (*wasmagentv1.ComposeAgentResponse, error) {
	if len(req.GetIncludePlugins()) > 0 {
		return nil, toStatus(fmt.Errorf("%w: %s", errPluginUnknown, strings.Join(req.GetIncludePlugins(), ", ")))
	}
	templates, err := s.currentGallery(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	parts := gallery.Parts{Tools: req.GetTools(), Prompts: req.GetPrompts()}
	for _, name := range req.GetSkills() {
		skill := templates.Skill(actingPrincipal(ctx).GetTenant(), name)
		if skill == nil {
			return nil, toStatus(fmt.Errorf("%w: %s", errSkillUnknown, name))
		}
		parts.Skills = append(parts.Skills, skill)
	}
	for _, name := range req.GetMcpTools() {
		if isDestructive(name) && !req.GetMcpToolsAllowDestructive() {
			return nil, toStatus(fmt.Errorf("%w: %s", errDestructiveTool, name))
		}
		parts.MCPTools = append(parts.MCPTools, &wasmagentv1.TemplateMcpTool{Name: name})
	}
	packed, err := gallery.Container(parts)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ComposeAgentResponse{Rvf: packed, Manifest: &wasmagentv1.RvfManifest{
		Skills: req.GetSkills(), McpTools: req.GetMcpTools(), Prompts: int32(len(parts.Prompts)), Tools: int32(len(parts.Tools)),
		RvfSizeBytes: int32(len(packed)), Name: req.GetName(), Model: req.GetModel(),
	}}, nil
}

// isDestructive reports whether a tool's name contains a word such as delete or shutdown, or begins with federation_.
func isDestructive(tool string) bool {
	tool = strings.ToLower(tool)
	for _, word := range []string{"delete", "remove", "destroy", "purge", "shutdown", "terminate", "reset"} {
		if strings.Contains(tool, word) {
			return true
		}
	}
	return strings.HasPrefix(tool, "federation_")
}
