package policy

import (
	"context"
	"path/filepath"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// UnknownNames returns a warning for each name in documents that matches no call. Such a name is a server that is not
// in servers, a tool that no server of its rule lists, or a name of the form `server__tool`, which only the endpoint
// /mcp uses. servers maps each server to the names of its tools. If these names are nil, the tools of the server are
// unknown, and UnknownNames reports only names of the form `server__tool` for it.
func UnknownNames(documents []*policyv1.Document, servers map[string][]string) []*policyv1.Finding {
	files := make([]document.File, len(documents))
	for i, d := range documents {
		files[i] = document.File{Path: d.GetPath(), Text: []byte(d.GetText())}
	}
	var out []*policyv1.Finding
	for _, p := range document.UnknownNames(files, engine.Inventory(servers)) {
		found := findingOf(p)
		found.Severity, found.Check = policyv1.Severity_SEVERITY_WARNING, "names"
		out = append(out, found)
	}
	return out
}

// ListedTools returns the names of the tools that each server listed when the mesh of this configuration last ran. It
// reads the mesh's data directory. The result is empty if the catalog is in PostgreSQL, on another machine, or
// unreadable.
func ListedTools(ctx context.Context, f *config.File, env config.Env) map[string][]string {
	source, err := f.Stores.Policy.Resolve(f, env)
	if err != nil || source != sqlstore.SQLite {
		return nil
	}
	tools, err := store.ListedTools(ctx, filepath.Join(f.Path(f.Data), "policy", "catalogue.db"))
	if err != nil {
		return nil
	}
	return tools
}
