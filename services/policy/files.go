package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// extensions are those of policy documents in a folder.
var extensions = []string{".yaml", ".yml", ".json"}

func compile(documents []*policyv1.Document, sessionCap int) (*engine.Set, error) {
	files := make([]document.File, len(documents))
	for i, d := range documents {
		files[i] = document.File{Path: d.GetPath(), Text: []byte(d.GetText())}
	}
	parsed, err := document.ParseSet(files)
	if err != nil {
		return nil, err
	}
	return engine.Compile(parsed, engine.Options{SessionCap: sessionCap})
}

// read reads the files and, of folders, the documents right inside.
func read(paths []string) ([]*policyv1.Document, error) {
	var names []string
	for _, path := range paths {
		found, err := documentsAt(path)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return nil, errors.New("no policy document is configured: name files or folders under `policies`; without one every call would be refused")
	}
	slices.Sort(names)
	var out []*policyv1.Document
	for _, name := range slices.Compact(names) {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the policy: %w", err)
		}
		out = append(out, &policyv1.Document{Path: name, Text: string(raw)})
	}
	return out, nil
}

// documentsAt lists the documents of a path. Hidden names are left out: editors
// and Kubernetes keep their own files there.
func documentsAt(path string) ([]string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the policy %s does not exist: name a file or a folder with policy documents", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read the policies: %w", err)
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") && slices.Contains(extensions, strings.ToLower(filepath.Ext(e.Name()))) {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out, nil
}

// ReadDocuments reads files and folders as the service does.
func ReadDocuments(paths []string) ([]*policyv1.Document, error) { return read(paths) }

// Lint checks documents as they would be active together. Without findings they
// load.
func Lint(documents []*policyv1.Document) []*policyv1.Finding {
	_, err := compile(documents, 1)
	return findings(err)
}

// findings returns why documents do not load, each with its place.
func findings(err error) []*policyv1.Finding {
	if err == nil {
		return nil
	}
	problems, ok := errors.AsType[strictyaml.Errors](err)
	if !ok {
		return []*policyv1.Finding{{Severity: policyv1.Severity_SEVERITY_ERROR, Message: err.Error(), Check: "load"}}
	}
	out := make([]*policyv1.Finding, len(problems))
	for i, p := range problems {
		message := p.Message
		if p.Path != "" {
			message = p.Path + ": " + message
		}
		out[i] = &policyv1.Finding{
			Severity: policyv1.Severity_SEVERITY_ERROR, Check: "load",
			Path: p.File, Line: int32(p.Line), Column: int32(p.Column), Message: message, Suggestion: p.Suggestion,
		}
	}
	return out
}

// Lint implements policyv1.PolicyServiceServer.
func (*Service) Lint(_ context.Context, req *policyv1.LintRequest) (*policyv1.LintResponse, error) {
	return &policyv1.LintResponse{Findings: Lint(req.GetDocuments())}, nil
}

// Apply implements policyv1.PolicyServiceServer: what comes from files is changed
// there.
func (s *Service) Apply(ctx context.Context, _ *policyv1.ApplyRequest) (*policyv1.ApplyResponse, error) {
	if authn.CallerOf(ctx).Tenant() != home {
		return nil, toStatus(errTenant)
	}
	return nil, toStatus(fmt.Errorf("%w: %s", errInFiles, strings.Join(s.cfg.Paths, ", ")))
}
