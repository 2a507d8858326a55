package approval

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/publicname"
)

const (
	// maxHistory is the maximum number of transitions that a response contains. maxHistoryBytes is their maximum total
	// size.
	maxHistory      = 1000
	maxHistoryBytes = 1 << 20
	// pageSize is the number of approvals per page if the request does not set a page size.
	pageSize = 100
	// maxScan is the maximum number of approvals that are read for one page, including approvals that the filter excludes.
	// When this limit is reached, the page ends.
	maxScan = 10_000
)

// GetApproval implements approvalv1.ApprovalServiceServer.
func (s *Service) GetApproval(ctx context.Context, req *approvalv1.GetApprovalRequest) (*approvalv1.GetApprovalResponse, error) {
	g := &approvalReader{caller: authn.CallerOf(ctx), req: req}
	if err := s.store.Look(ctx, g.readHead); err != nil {
		return nil, toStatus(err)
	}
	if !g.wantsView() {
		return g.resp, nil
	}
	seen, err := s.drawView(ctx, g.resp.GetApproval().GetRequester(), g.readForView)
	if err != nil {
		return nil, toStatus(err)
	}
	if seen != nil {
		if g.resp.View, err = seen.Part(req.GetViewOffset(), req.GetViewVersion()); err != nil {
			return nil, toStatus(err)
		}
	}
	return g.resp, nil
}

type approvalReader struct {
	caller *authn.Caller
	req    *approvalv1.GetApprovalRequest
	resp   *approvalv1.GetApprovalResponse
}

// readHead reads the approval without its call, because the call may be large. It also reads the history, unless the
// request is for a later part of a view.
func (g *approvalReader) readHead(ctx context.Context, tx *store.Tx) error {
	r, err := tx.GetHead(ctx, g.caller.Tenant(), g.req.GetApprovalId())
	if err != nil {
		return err
	}
	if !isVisible(g.caller, r) {
		return store.ErrNotFound
	}
	g.resp = &approvalv1.GetApprovalResponse{Approval: r.Approval}
	if g.req.GetViewOffset() == 0 {
		g.resp.History, err = readHistory(ctx, tx, r)
	}
	return err
}

// wantsView reports whether the caller requests a view and may see it.
func (g *approvalReader) wantsView() bool {
	return g.req.GetView() && (!isAgent(g.caller) || g.resp.GetApproval().GetTerms().GetSelfConfirm())
}

// readForView reads the approval, the history and the call in one transaction, so that the response is consistent. It
// returns nil if the response needs no view.
func (g *approvalReader) readForView(ctx context.Context, tx *store.Tx) (*lifecycle.Record, error) {
	if err := g.readHead(ctx, tx); err != nil || !g.wantsView() {
		return nil, err
	}
	r, err := tx.Get(ctx, g.caller.Tenant(), g.req.GetApprovalId())
	if err != nil || !paramsStored(r) {
		return nil, err
	}
	return r, nil
}

func isAgent(caller *authn.Caller) bool {
	return caller.Person == nil && caller.Principal.GetRole() == authv1.TokenRole_TOKEN_ROLE_AGENT
}

// paramsStored reports whether the params are still stored. A view can be rendered only while they are stored.
func paramsStored(r *lifecycle.Record) bool {
	return !r.Ended() || r.Approval.GetParamsBytes() == int64(len(r.Call.GetCall().GetParamsJson()))
}

// readHistory reads the newest transitions of the approval and returns them oldest first. It returns at most maxHistory
// transitions of at most maxHistoryBytes in total.
func readHistory(ctx context.Context, tx *store.Tx, r *lifecycle.Record) ([]*approvalv1.Move, error) {
	moves, err := tx.History(ctx, r.Approval.GetId(), maxHistory)
	if err != nil {
		return nil, err
	}
	size, first := 0, len(moves)
	for first > 0 && size+proto.Size(moves[first-1]) <= maxHistoryBytes {
		first--
		size += proto.Size(moves[first])
	}
	return moves[first:], nil
}

// ListApprovals implements approvalv1.ApprovalServiceServer.
func (s *Service) ListApprovals(ctx context.Context, req *approvalv1.ListApprovalsRequest) (*approvalv1.ListApprovalsResponse, error) {
	caller := authn.CallerOf(ctx)
	before, err := parsePageToken(req)
	if err != nil {
		return nil, toStatus(err)
	}
	most := int(req.GetPageSize())
	if most == 0 {
		most = pageSize
	}
	var resp *approvalv1.ListApprovalsResponse
	err = s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		resp, err = s.readPage(ctx, tx, pageRequest{caller: caller, filter: req.GetFilter(), before: before, limit: most})
		return err
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

type pageRequest struct {
	caller *authn.Caller
	filter *approvalv1.ApprovalFilter
	before int64
	limit  int
}

// readPage reads a page. The store can't apply the for_me field of the filter, so readPage applies it after reading.
// Therefore a page may be shorter than requested.
func (s *Service) readPage(ctx context.Context, tx *store.Tx, p pageRequest) (*approvalv1.ListApprovalsResponse, error) {
	resp := new(approvalv1.ListApprovalsResponse)
	at := p.before
	for scanned := 0; scanned < maxScan; {
		found, err := tx.List(ctx, storeFilter(p.caller, p.filter), at, min(p.limit+1, maxScan))
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			if len(resp.GetApprovals()) == p.limit {
				resp.NextPageToken = formatPageToken(p.filter, at)
				return resp, nil
			}
			at = l.Opened
			if s.matchesForMe(p.caller, p.filter, l.Record) {
				resp.Approvals = append(resp.Approvals, l.Approval)
			}
		}
		scanned += len(found)
		if len(found) <= p.limit {
			return resp, nil
		}
	}
	resp.NextPageToken = formatPageToken(p.filter, at)
	return resp, nil
}

// matchesForMe reports whether an approval matches the for_me field of the filter. If for_me is set, an approval
// matches only if the caller may vote on it and has not voted yet.
func (s *Service) matchesForMe(caller *authn.Caller, f *approvalv1.ApprovalFilter, r *lifecycle.Record) bool {
	if !f.GetForMe() {
		return true
	}
	person := deciderOf(caller)
	return r.Approval.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING && r.VoteOf(person) == nil && s.mayVote(person, r)
}

func deciderOf(caller *authn.Caller) *identityv1.Principal {
	if caller.Person != nil {
		return caller.Person
	}
	return caller.Principal
}

// mayVote reports whether a person may vote on an approval while it is pending.
func (s *Service) mayVote(person *identityv1.Principal, r *lifecycle.Record) bool {
	if role := person.GetRole(); role != authv1.TokenRole_TOKEN_ROLE_OPERATOR && role != authv1.TokenRole_TOKEN_ROLE_APPROVER {
		return false
	}
	_, err := r.MayDecide(person, s.cfg.OwnerMayApprove)
	return err == nil
}

// storeFilter returns a store filter. It selects the approvals that match f, if the caller may see them.
func storeFilter(caller *authn.Caller, f *approvalv1.ApprovalFilter) store.Filter {
	out := store.Filter{
		Tenant: caller.Tenant(), States: f.GetStates(), Server: f.GetServer(), Name: publicname.Of(f.GetName()), Subject: f.GetSubject(), Holder: f.GetHolder(),
	}
	if isAgent(caller) {
		out.Requester = caller.Principal
	}
	return out
}

// formatPageToken returns a page token. It contains the position of the page and a digest of the filter.
func formatPageToken(f *approvalv1.ApprovalFilter, before int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", before, filterDigest(f)))
}

func parsePageToken(req *approvalv1.ListApprovalsRequest) (int64, error) {
	if req.GetPageToken() == "" {
		return 0, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil {
		return 0, errPageToken
	}
	place, of, _ := strings.Cut(string(raw), " ")
	before, err := strconv.ParseInt(place, 10, 64)
	if err != nil || before < 1 || of != filterDigest(req.GetFilter()) {
		return 0, errPageToken
	}
	return before, nil
}
