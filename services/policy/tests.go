package policy

import (
	"context"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/policy/internal/document"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// CountTests returns the total number of tests in the documents. If the documents can't be used, it returns 0.
func CountTests(documents []*policyv1.Document) int {
	set, err := document.ParseSet(filesOf(documents), nil, time.Now())
	if err != nil {
		return 0
	}
	return len(set.Tests)
}

// Schema returns the JSON Schema for policy documents, which is meant for editors.
func Schema() []byte { return document.Schema() }

// RunTests runs the tests in documents that would be active together. If f is not nil, RunTests uses this configuration
// in the same way as [LintFor]. RunTests returns an error only if ctx is done.
func RunTests(ctx context.Context, f *config.File, documents []*policyv1.Document) (*policyv1.TestDocumentsResponse, error) {
	if f == nil {
		return runTests(ctx, baseConfig(new(config.Default())), documents, nil)
	}
	cfg := configWithTokens(f)
	return runTests(ctx, cfg, documents, cfg.approvers(cfg.OwnerMayApprove))
}

// TestDocuments implements policyv1.PolicyServiceServer. Like LintDocuments, it checks the approvers only for operators
// of the installation.
func (s *Service) TestDocuments(ctx context.Context, req *policyv1.TestDocumentsRequest) (*policyv1.TestDocumentsResponse, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	return runTests(ctx, s.configForDrafts(), req.GetDocuments(), s.peopleFor(ctx))
}

func runTests(ctx context.Context, cfg Config, documents []*policyv1.Document, people *engine.Approvers) (*policyv1.TestDocumentsResponse, error) {
	parsed, _, err := cfg.load(documents, people)
	if err != nil {
		return &policyv1.TestDocumentsResponse{Findings: findings(err)}, nil
	}
	all, late, err := parsed.TestResults(ctx, cfg.TestsWithin, cfg.SessionCap, engine.Times{Decide: cfg.Decide, Execute: cfg.Execute})
	if ctx.Err() != nil { // the request was cancelled, which is not a finding
		return nil, context.Cause(ctx)
	}
	out := &policyv1.TestDocumentsResponse{Findings: findings(err)}
	for i := range all {
		out.Results = append(out.Results, packTestResult(&all[i]))
	}
	if late != nil {
		found := findingOf(*late)
		found.Severity, found.Check = policyv1.Severity_SEVERITY_ERROR, "load"
		out.Findings = append(out.Findings, found)
	}
	return out, nil
}

func packTestResult(r *document.TestResult) *policyv1.TestResult {
	out := &policyv1.TestResult{
		Path: r.Place.File, Line: int32(r.Place.Line), Column: int32(r.Place.Column), Name: r.Name, Document: r.Document, Passed: r.Failure == nil,
	}
	if r.Failure != nil {
		out.Message = r.Failure.Path + ": " + r.Failure.Message
		if r.Failure.Suggestion != "" {
			out.Message += "; " + r.Failure.Suggestion
		}
	}
	return out
}
