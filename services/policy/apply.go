package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// ApplyDocuments implements policyv1.PolicyServiceServer.
func (s *Service) ApplyDocuments(ctx context.Context, req *policyv1.ApplyDocumentsRequest) (*policyv1.ApplyDocumentsResponse, error) {
	caller := authn.CallerOf(ctx)
	switch {
	case !caller.OperatesInstallation():
		return nil, toStatus(errOtherTenant)
	case !s.cfg.Stored:
		return nil, toStatus(fmt.Errorf("%w: %s", errInFiles, strings.Join(s.cfg.Paths, ", ")))
	}
	compiled, err := s.compileApplied(ctx, req.GetDocuments())
	if err != nil {
		return nil, toStatus(err)
	}
	active, changed, err := s.activate(ctx, caller, req, compiled)
	if err != nil {
		return nil, toStatus(err)
	}
	s.publishRevision(ctx, active, compiled)
	set, began := s.active.Load(), time.Now()
	if err := s.waitForCalls(ctx, set, began); err != nil {
		return nil, err
	}
	resp := &policyv1.ApplyDocumentsResponse{PolicyRevision: set.Revision(), Activation: set.activation(), DocumentsId: active.ID, Unchanged: !changed}
	for _, w := range compiled.warnings {
		found := findingOf(w)
		found.Severity, found.Check = policyv1.Severity_SEVERITY_WARNING, "load"
		resp.Findings = append(resp.Findings, found)
	}
	return resp, nil
}

// activate makes documents active in the store. If changes require approval, it does so only after people have
// approved the change. activate returns the active revision, and reports whether this revision is new.
func (s *Service) activate(ctx context.Context, caller *authn.Caller, req *policyv1.ApplyDocumentsRequest, compiled *compiledDocuments) (*store.Revision, bool, error) {
	if s.cfg.Changes == nil {
		return s.storeDocuments(ctx, caller, req, compiled, nil)
	}
	c := &policyChange{service: s, author: authorOf(caller), request: req, compiled: compiled}
	return c.apply(ctx, caller)
}

// storeDocuments makes documents active in the store. approval is nil if changes need no approval. storeDocuments
// returns the active revision, and reports whether this revision is new.
func (s *Service) storeDocuments(ctx context.Context, caller *authn.Caller, req *policyv1.ApplyDocumentsRequest, compiled *compiledDocuments, approval *changeApproval) (*store.Revision, bool, error) {
	raw, err := packDocuments(compiled.documents)
	if err != nil {
		return nil, false, fmt.Errorf("store the policy documents: %w", err)
	}
	known := s.active.Load()
	want := &store.Activation{
		ID: documentsID(compiled.documents), Documents: raw, Author: caller.Person.GetSubject(), Reason: req.GetComment(),
		Expected: known.expected(req.GetExpectedRevision()), Known: *known.stored, Again: known.rejected != nil,
	}
	if approval != nil {
		want.Replaces, want.Approval, want.ApprovedBy = &approval.replaces, approval.id, approval.people
	}
	active, changed, err := s.store.ActivateRevision(ctx, want)
	switch {
	case errors.Is(err, store.ErrRevisionChanged):
		return nil, false, changedError(&active, err)
	case errors.Is(err, store.ErrRevisionsLost), errors.Is(err, store.ErrApprovalUsed):
		return nil, false, err
	case err != nil:
		return nil, false, storeError("the policy documents could not be stored, and it is not known whether they are active: apply them again", err)
	}
	return &active, changed, nil
}

// compileApplied compiles documents and runs their tests. It also checks that enough people can give the approvals that
// the documents require.
func (s *Service) compileApplied(ctx context.Context, documents []*policyv1.Document) (*compiledDocuments, error) {
	done, err := s.lintSlots.Acquire(ctx, callerOwner(ctx)) // the tests may take long
	if err != nil {
		return nil, err
	}
	defer done()
	out := &compiledDocuments{documents: sortDocuments(documents)}
	out.set, out.warnings, err = s.cfg.compile(ctx, out.documents, s.people())
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, invalidError(err)
	}
	return out, nil
}

// invalidError returns the error for documents that can't be used. The error contains the first problem.
func invalidError(err error) error {
	problems := findings(err)
	text := findingLine(problems[0])
	if more := len(problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more: `sluice policy lint` lists them)", more)
	}
	return fmt.Errorf("%w: %s", errInvalidDocuments, text)
}

// NoDocuments is the expected_revision of a request that must fail if documents have already been applied. The id of
// the active revision is not suitable for this purpose, because it changes whenever the catalog changes.
const NoDocuments = "0000000000000000000000000000000000000000000000000000000000000000"

// expected converts the expected_revision of a request. The expected_revision is the id of some documents, the id of
// the active revision, [NoDocuments], or empty. The result points to the id of the documents that must be active. It
// points to "" if no documents may be active, and is nil if any documents may be active.
func (a *activeSet) expected(revision string) *string {
	switch revision {
	case "":
		return nil
	case NoDocuments:
		return new("")
	case a.Revision():
		return &a.stored.ID
	}
	return &revision
}

// changedError returns the error for a request whose expected_revision is not the active revision.
func changedError(active *store.Revision, err error) error {
	if active.Number == 0 {
		return fmt.Errorf("%w: no documents have been applied yet", err)
	}
	return fmt.Errorf("%w: %s is active, applied by %s at %s: %s. Compare your documents with it (`sluice policy diff`), and apply them again",
		err, active.ID[:16], active.Author, active.Activated.Format(time.RFC3339), active.Reason)
}
