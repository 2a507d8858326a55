package policy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// defaultRevisionPage is the number of revisions on a page if a request does not specify one.
const defaultRevisionPage = 100

// describeStored adds information about the stored revision from which the set was compiled. It adds nothing if the
// documents come from files.
func (a *activeSet) describeStored(out *policyv1.Revision) {
	if a.stored == nil {
		return
	}
	if out.Stored = true; a.stored.Number > 0 {
		packStored(out, a.stored)
	}
}

func packStored(out *policyv1.Revision, r *store.Revision) {
	out.DocumentsId, out.Number, out.Author, out.Comment, out.Stored = r.ID, r.Number, r.Author, r.Reason, true
	out.Activated = timestamppb.New(r.Activated)
	if r.Approval != "" {
		out.ApprovalId, out.ApprovedBy = r.Approval, peopleOf(r.ApprovedBy)
	}
}

// GetRevision implements policyv1.PolicyServiceServer. For the active revision, it waits until no decisions are made
// with older revisions.
func (s *Service) GetRevision(ctx context.Context, req *policyv1.GetRevisionRequest) (*policyv1.GetRevisionResponse, error) {
	caller := authn.CallerOf(ctx)
	if !mayReadDocuments(caller) {
		return nil, toStatus(errOtherTenant)
	}
	found, err := s.findRevision(ctx, req.GetRevision())
	if err != nil {
		return nil, toStatus(err)
	}
	if found.set == nil {
		out := new(policyv1.Revision)
		packStored(out, &found.stored)
		return &policyv1.GetRevisionResponse{Revision: out, Documents: found.documents}, nil
	}
	if err := s.waitForOlderLeases(ctx, found.set); err != nil {
		return nil, err
	}
	return &policyv1.GetRevisionResponse{Revision: found.set.describe(caller), Documents: found.documents}, nil
}

// foundRevision is a revision and its documents. If the revision is active, set is the active set. Otherwise set is
// nil.
type foundRevision struct {
	set       *activeSet
	stored    store.Revision
	documents []*policyv1.Document
}

// findRevision returns the revision whose id starts with the given digits. If the given id is empty, it returns the
// active revision.
func (s *Service) findRevision(ctx context.Context, id string) (*foundRevision, error) {
	set := s.active.Load()
	switch {
	case set == nil:
		return nil, errNoPolicy
	case id == "" && set.stored != nil && set.stored.Number == 0:
		return nil, errNothingApplied
	case id == "" && set.stored != nil && set.rejected != nil: // the set was not compiled from the stored documents
		id = set.stored.ID
	case id == "":
		return &foundRevision{set: set, documents: set.documents}, nil
	case set.stored == nil && !strings.HasPrefix(set.Revision(), id):
		return nil, fmt.Errorf("%s: %w", id, errNoRevision)
	case set.stored == nil:
		return &foundRevision{set: set, documents: set.documents}, nil
	}
	found, err := s.store.FindRevision(ctx, id)
	switch {
	case errors.Is(err, store.ErrRevisionUnknown) && strings.HasPrefix(set.Revision(), id) && set.stored.Number > 0:
		return &foundRevision{set: set, documents: set.documents}, nil
	case errors.Is(err, store.ErrRevisionUnknown), errors.Is(err, store.ErrRevisionAmbiguous):
		return nil, fmt.Errorf("%s: %w", id, err)
	case err != nil:
		return nil, storeError("the revision could not be read", err)
	}
	out := &foundRevision{stored: found}
	if found.ID == set.stored.ID {
		out.set = set
	}
	out.documents, err = s.storedDocuments(ctx, found.ID)
	if err != nil && !errors.Is(err, errDamaged) {
		return nil, storeError("the revision could not be read", err)
	}
	return out, err
}

// ListRevisions implements policyv1.PolicyServiceServer.
func (s *Service) ListRevisions(ctx context.Context, req *policyv1.ListRevisionsRequest) (*policyv1.ListRevisionsResponse, error) {
	caller := authn.CallerOf(ctx)
	if !mayReadDocuments(caller) {
		return nil, toStatus(errOtherTenant)
	}
	below, err := parseRevisionPage(req.GetPageToken())
	if err != nil {
		return nil, toStatus(err)
	}
	set, size := s.active.Load(), int(req.GetPageSize())
	if set.stored == nil {
		return &policyv1.ListRevisionsResponse{Revisions: []*policyv1.Revision{set.describe(caller)}}, nil
	}
	if size == 0 {
		size = defaultRevisionPage
	}
	all, err := s.store.Revisions(ctx, below, size+1)
	if err != nil {
		return nil, toStatus(storeError("the revisions could not be read", err))
	}
	resp := new(policyv1.ListRevisionsResponse)
	for i := range all[:min(len(all), size)] {
		out := new(policyv1.Revision)
		if all[i].Number == set.stored.Number {
			out = set.describe(caller)
		} else {
			packStored(out, &all[i])
		}
		resp.Revisions = append(resp.Revisions, out)
	}
	if len(all) > size {
		resp.NextPageToken = strconv.FormatInt(all[size-1].Number, 10)
	}
	return resp, nil
}

// parseRevisionPage parses a page token. All revisions on the page have smaller numbers than the result. For the first
// page, the result is 0.
func parseRevisionPage(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	below, err := strconv.ParseInt(token, 10, 64)
	if err != nil || below < 1 {
		return 0, errPageToken
	}
	return below, nil
}
