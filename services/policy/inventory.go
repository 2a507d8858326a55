package policy

import (
	"context"
	"maps"
	"path/filepath"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// ToolLists contains the tools that the configured servers list. A server whose tools have not been listed yet has nil
// tools.
type ToolLists = engine.ToolLists

// ListedTool is a tool in a server's list.
type ListedTool = engine.ListedTool

// LintLists checks documents against the tool lists of servers. It finds names that match no configured server or no
// listed tool, conditions that do not fit the accepted schemas of the tools, and dangerous tools that no rule names.
// Such findings do not prevent the use of the documents, even if their severity is error. LintLists skips documents
// that have other errors.
func LintLists(documents []*policyv1.Document, lists ToolLists) []*policyv1.Finding {
	var out []*policyv1.Finding
	for _, f := range document.CheckLists(filesOf(documents), &lists) {
		found := findingOf(f.Problem)
		found.Check, found.Severity = f.Check, policyv1.Severity_SEVERITY_ERROR
		if f.Info {
			found.Severity = policyv1.Severity_SEVERITY_INFO
		} else if f.Warning {
			found.Severity = policyv1.Severity_SEVERITY_WARNING
		}
		out = append(out, found)
	}
	sortFindings(out)
	return out
}

// ListedTools returns the tools that each server listed in the last run of the mesh with this configuration. It reads
// them from the data directory of the mesh. The result is empty if the catalog is in PostgreSQL or on another machine,
// or if it can't be read.
func ListedTools(ctx context.Context, f *config.File, env config.Env) ToolLists {
	source, err := f.Stores.Policy.Resolve(f, env)
	if err != nil || source != sqlstore.SQLite {
		return ToolLists{}
	}
	lists, err := store.ListedTools(ctx, filepath.Join(f.Path(f.Data), "policy", "catalogue.db"))
	if err != nil {
		return ToolLists{}
	}
	return lists
}

// toolLists returns the tool lists in the active catalog. It reads schemas from the store only when they are needed. If
// the configuration contains no servers, the result is empty, because the configured servers are unknown.
func (s *Service) toolLists(ctx context.Context) ToolLists {
	if len(s.cfg.Servers) == 0 {
		return ToolLists{}
	}
	servers := s.active.Load().catalog.servers
	out := ToolLists{Tools: make(map[string][]ListedTool)}
	for name := range maps.Keys(s.cfg.Servers) {
		out.Tools[name] = nil
	}
	for name, server := range servers {
		out.Tools[name] = server.ToolList()
	}
	definition := func(server, tool string) (text string, known bool) {
		d := servers[server].Tools[tool].Pinned()
		if d == nil {
			return "", false
		}
		text, err := s.store.Text(ctx, server, d.Digest)
		return text, err == nil
	}
	out.Schema = func(server, tool string) engine.Schema {
		text, known := definition(server, tool)
		if !known {
			return engine.Schema{}
		}
		return catalog.SchemaOf(text)
	}
	out.Unusable = func(server, tool string) string {
		text, known := definition(server, tool)
		if !known {
			return ""
		}
		return catalog.UnusableSchema(text)
	}
	return out
}

// findingLine returns `file:line:column: message; suggestion` without the empty parts.
func findingLine(f *policyv1.Finding) string {
	return strictyaml.Problem{File: f.GetPath(), Line: int(f.GetLine()), Column: int(f.GetColumn()), Message: f.GetMessage(), Suggestion: f.GetSuggestion()}.Error()
}

// warnOfLists logs the findings of [LintLists] for the active documents, except for findings with the severity info.
func (s *Service) warnOfLists(ctx context.Context) {
	for _, f := range LintLists(s.active.Load().documents, s.toolLists(ctx)) {
		if f.GetSeverity() != policyv1.Severity_SEVERITY_INFO {
			s.deps.Log.WarnContext(ctx, "a policy may not do what its author meant", "warning", findingLine(f))
		}
	}
}
