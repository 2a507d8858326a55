package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

var extensions = []string{".yaml", ".yml", ".json"}

// compile parses and compiles documents for the current time, and runs their tests. Warnings do not prevent the use of
// documents.
func (c *Config) compile(ctx context.Context, documents []*policyv1.Document, people *engine.Approvers) (*engine.Set, strictyaml.Errors, error) {
	parsed, set, err := c.load(documents, people)
	if err != nil {
		return nil, nil, err
	}
	failed, err := parsed.RunTests(ctx, c.TestsWithin, c.SessionCap, engine.Times{Decide: c.Decide, Execute: c.Execute})
	if err == nil {
		err = failed.Err()
	}
	return set, parsed.Warnings, err
}

// load parses and compiles documents for the current time, without running their tests.
func (c *Config) load(documents []*policyv1.Document, people *engine.Approvers) (*document.Set, *engine.Set, error) {
	now := time.Now()
	parsed, err := document.ParseSet(filesOf(documents), people, now)
	if err != nil {
		return nil, nil, err
	}
	set, err := engine.Compile(parsed.Documents, engine.Options{
		SessionCap: c.SessionCap, Times: engine.Times{Decide: c.Decide, Execute: c.Execute}, Observe: c.Observe, Now: now,
	})
	return parsed, set, err
}

// filesOf converts documents to the type that package document parses.
func filesOf(documents []*policyv1.Document) []document.File {
	files := make([]document.File, len(documents))
	for i, d := range documents {
		files[i] = document.File{Path: d.GetPath(), Text: []byte(d.GetText())}
	}
	return files
}

const (
	// kubernetesData is the name of a symbolic link that Kubernetes creates when it mounts a ConfigMap or a Secret as a
	// directory. The link points to the current version of the directory. To update the directory, Kubernetes replaces the
	// link.
	kubernetesData = "..data"
	// maxReadings limits how often documents are read again because Kubernetes replaced the link during the read.
	maxReadings = 5
)

// read returns the documents at the given paths. A path is a document, or a directory of documents whose subdirectories
// are ignored. If Kubernetes replaces a directory during the read, read starts again. Therefore it never returns
// documents from different versions.
func read(paths []string) ([]*policyv1.Document, error) {
	for range maxReadings {
		before := dataVersions(paths)
		documents, err := readOnce(paths)
		if slices.Equal(before, dataVersions(paths)) {
			return documents, err
		}
	}
	return nil, errors.New("read the policy: the folder was replaced during each reading; it is read again")
}

// For each path, dataVersions returns the targets of the link [kubernetesData] in the path and in its parent directory.
// The target is "" if there is no such link.
func dataVersions(paths []string) []string {
	out := make([]string, 0, 2*len(paths))
	for _, path := range paths {
		for _, dir := range []string{path, filepath.Dir(path)} {
			target, _ := os.Readlink(filepath.Join(dir, kubernetesData)) // if there is no link, the target is ""
			out = append(out, target)
		}
	}
	return out
}

func readOnce(paths []string) ([]*policyv1.Document, error) {
	var names []string
	for _, path := range paths {
		found, err := documentsAt(path)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		return nil, errors.New("no policy document is configured: name files or folders under `policies`, and put a document there, for example one that `sluice policy suggest` prints, or `{version: 1, default: deny}`")
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

// documentsAt lists the documents at a path. It skips hidden files, because editors and Kubernetes create such files
// for their own use.
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

// ReadDocuments reads the documents at the given paths in the same way as the service.
func ReadDocuments(paths []string) ([]*policyv1.Document, error) { return read(paths) }

// Lint checks documents that would be active together. The documents can be used if no finding is an error. Lint does
// not check whether there are people who can approve calls.
func Lint(documents []*policyv1.Document) []*policyv1.Finding {
	return lint(context.Background(), baseConfig(new(config.Default())), documents, nil)
}

// LintFor is like [Lint], but uses the given configuration. It also checks whether there are people who can approve
// calls. LintFor does not resolve secrets.
func LintFor(f *config.File, documents []*policyv1.Document) []*policyv1.Finding {
	cfg := configWithTokens(f)
	return append(lint(context.Background(), cfg, documents, cfg.approvers(cfg.OwnerMayApprove)), observeFindings(f)...)
}

// configWithTokens returns the configuration of the policy service, including the people and agents that have tokens.
// It does not resolve secrets.
func configWithTokens(f *config.File) Config {
	cfg := baseConfig(f)
	cfg.People = configuredPeople(f)
	return cfg
}

func lint(ctx context.Context, cfg Config, documents []*policyv1.Document, people *engine.Approvers) []*policyv1.Finding {
	_, warnings, err := cfg.compile(ctx, documents, people)
	out := findings(err)
	for _, w := range warnings {
		found := findingOf(w)
		found.Severity, found.Check = policyv1.Severity_SEVERITY_WARNING, "approvers"
		out = append(out, found)
	}
	sortFindings(out)
	return out
}

// sortFindings sorts findings by document, line and column.
func sortFindings(all []*policyv1.Finding) {
	slices.SortStableFunc(all, func(a, b *policyv1.Finding) int {
		return cmp.Or(cmp.Compare(a.GetPath(), b.GetPath()), cmp.Compare(a.GetLine(), b.GetLine()), cmp.Compare(a.GetColumn(), b.GetColumn()))
	})
}

// findings returns the problems in an error from reading or compiling documents. Each finding contains the position of
// its problem.
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
		out[i] = findingOf(p)
		out[i].Severity, out[i].Check = policyv1.Severity_SEVERITY_ERROR, "load"
	}
	return out
}

func findingOf(p strictyaml.Problem) *policyv1.Finding {
	message := p.Message
	if p.Path != "" {
		message = p.Path + ": " + message
	}
	return &policyv1.Finding{Path: p.File, Line: int32(p.Line), Column: int32(p.Column), Message: message, Suggestion: p.Suggestion}
}

const (
	// maxTestTime limits how long the tests in documents may take when the documents are activated. Even on a slow
	// machine, ordinary tests take less than a hundredth of this time.
	maxTestTime = 30 * time.Second
	// maxLintTime limits how long the tests may take if a request only checks documents, unless the configuration
	// contains another limit.
	maxLintTime = 5 * time.Second
)

// LintDocuments implements policyv1.PolicyServiceServer. It checks the approvers only for operators of the
// installation, because only they may see all tokens. It checks the tool lists of servers only for people who may read
// the catalog.
func (s *Service) LintDocuments(ctx context.Context, req *policyv1.LintDocumentsRequest) (*policyv1.LintDocumentsResponse, error) {
	tested, err := s.lintSlots.Acquire(ctx, callerOwner(ctx)) // the tests may take long
	if err != nil {
		return nil, err
	}
	out := lint(ctx, s.configForDrafts(), req.GetDocuments(), s.peopleFor(ctx))
	tested()
	if ctx.Err() != nil { // the request was cancelled, which is not a finding
		return nil, context.Cause(ctx)
	}
	if checkMayRead(ctx) == nil {
		done, err := s.listSlots.Acquire(ctx, callerOwner(ctx))
		if err != nil {
			return nil, err
		}
		defer done()
		out = append(out, LintLists(req.GetDocuments(), s.toolLists(ctx))...)
		sortFindings(out)
	}
	return &policyv1.LintDocumentsResponse{Findings: out}, nil
}

// configForDrafts returns the configuration with which the documents in a request are checked.
func (s *Service) configForDrafts() Config {
	cfg := s.cfg
	cfg.TestsWithin = min(cfg.TestsWithin, cmp.Or(cfg.DraftTestsWithin, maxLintTime))
	return cfg
}

// peopleFor returns the people who may approve calls, or nil if the caller may not see all tokens.
func (s *Service) peopleFor(ctx context.Context) *engine.Approvers {
	if authn.CallerOf(ctx).OperatesInstallation() {
		return s.people()
	}
	return nil
}
