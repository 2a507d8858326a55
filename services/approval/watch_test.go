package approval_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

type stream = grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse]

func (s *fixture) watch(t *testing.T, token string, req *approvalv1.WatchApprovalsRequest) stream {
	t.Helper()
	w, err := s.person(t, token).WatchApprovals(timeoutContext(t), req)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func next(t *testing.T, w stream) *approvalv1.WatchApprovalsResponse {
	t.Helper()
	m, err := w.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWatchApprovals_SendsCurrentApprovalsAndMoves(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		empty := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{})
		if m := next(t, empty); m.GetApproval() != nil || !m.GetSynced() || m.GetCursor() == "" {
			t.Errorf("without approvals: %v", m)
		}
		a, b := s.ask(t, `{"n":1}`).GetApproval(), s.ask(t, `{"n":2}`).GetApproval()
		for _, want := range []string{a.GetId(), b.GetId()} {
			if m := next(t, empty); m.GetApproval().GetId() != want {
				t.Errorf("got %v, want %s", m, want)
			}
		}
		w := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{})
		if m := next(t, w); m.GetApproval().GetId() != a.GetId() || m.GetSynced() || m.GetCursor() != "" {
			t.Errorf("the first current approval: %v", m)
		}
		m := next(t, w)
		if m.GetApproval().GetId() != b.GetId() || !m.GetSynced() || m.GetCursor() == "" {
			t.Errorf("the last current approval: %v", m)
		}
		s.approve(t, "ana", a.GetId())
		moved := next(t, w)
		if moved.GetApproval().GetId() != a.GetId() || moved.GetApproval().GetState() != approved {
			t.Errorf("moved: %v", moved)
		}
		resumed := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{Cursor: m.GetCursor()})
		if again := next(t, resumed); again.GetApproval().GetState() != approved || again.GetCursor() != moved.GetCursor() {
			t.Errorf("resumed: %v", again)
		}
	})
}

// Only people in the group sales may vote on the first and third call. A watcher in the group finance receives only the
// second call and its approval. A watcher that resumes the watch receives the same messages.
func TestWatchApprovals_ForMeSelectsLaterMovesToo(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		sales := func(d *policyv1.Decision) { d.Approval.Approvers = []string{"sales"} }
		req := &approvalv1.WatchApprovalsRequest{Filter: &approvalv1.ApprovalFilter{ForMe: true}}
		w := s.watch(t, "ana", req)
		first := next(t, w)
		if first.GetApproval() != nil {
			t.Fatalf("at first: %v", first)
		}
		s.ask(t, `{"n":1}`, sales)
		mine := s.ask(t, `{"n":2}`).GetApproval()
		last := s.ask(t, `{"n":3}`, sales).GetApproval()
		s.approve(t, "ana", mine.GetId())
		if _, err := s.vote(t, "ben", last.GetId(), no); err != nil {
			t.Fatal(err)
		}
		resumed := s.watch(t, "ana", &approvalv1.WatchApprovalsRequest{Filter: req.GetFilter(), Cursor: first.GetCursor()})
		for name, w := range map[string]stream{"at once": w, "resumed": resumed} {
			for {
				m := next(t, w)
				if m.GetApproval().GetId() != mine.GetId() {
					t.Errorf("%s: %v, want only %s", name, m, mine.GetId())
				}
				if m.GetApproval().GetState() == approved {
					break
				}
			}
		}
	})
}

func TestWatchApprovals_EndsWhenTheApprovalEnds(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.ask(t, `{"other":1}`)
		w := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{ApprovalId: a.GetId()})
		if m := next(t, w); m.GetApproval().GetState() != pending {
			t.Errorf("at first: %v", m)
		}
		if _, err := s.vote(t, "ana", a.GetId(), no); err != nil {
			t.Fatal(err)
		}
		if m := next(t, w); m.GetApproval().GetState() != denied {
			t.Errorf("in the end: %v", m)
		}
		if _, err := w.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream continues: %v", err)
		}
		over := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{ApprovalId: a.GetId()})
		if m := next(t, over); m.GetApproval().GetState() != denied {
			t.Errorf("a watch of an ended approval sends %v", m)
		}
		if _, err := over.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("the stream continues: %v", err)
		}
		_, err := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{ApprovalId: "none"}).Recv()
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
	})
}

// A gateway renews the lease of a claim. The renewal is stored but is not a state transition: watches do not receive
// it, and the version does not change.
func TestWatchApprovals_SendsNoRenewedLease(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.approve(t, "ana", a.GetId())
		claim := claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Lease = durationpb.New(time.Second) })
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claim); err != nil || resp.GetClaimed() == nil {
			t.Fatal(resp, err)
		}
		w := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{})
		if m := next(t, w); m.GetApproval().GetId() != a.GetId() || !m.GetSynced() {
			t.Fatalf("the current approval: %v", m)
		}
		renewed, err := s.gateway().RenewClaim(timeoutContext(t), &approvalv1.RenewClaimRequest{ApprovalId: a.GetId(), ClaimId: "c1", Holder: "gw-1", Lease: durationpb.New(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		other := s.ask(t, `{"n":1}`).GetApproval()
		if m := next(t, w); m.GetApproval().GetId() != other.GetId() {
			t.Errorf("after the renewal the watch sends %v", m)
		}
		<-time.After(1100 * time.Millisecond) // the first lease is over after 1 s
		now := s.get(t, a.GetId())
		if now.GetState() != claimed || !now.GetClaim().GetLeaseExpires().AsTime().Equal(renewed.GetLeaseExpires().AsTime()) || now.GetVersion() != 3 {
			t.Errorf("renewed: %v", now)
		}
		third := s.ask(t, `{"n":2}`).GetApproval()
		if m := next(t, w); m.GetApproval().GetId() != third.GetId() {
			t.Errorf("after the first lease the watch sends %v", m)
		}
	})
}

func TestWatchApprovals_RefusesTheCursorOfAnotherWatch(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		cursor := next(t, s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{})).GetCursor()
		for name, w := range map[string]stream{
			"of another tenant": s.watch(t, "acme-operator", &approvalv1.WatchApprovalsRequest{Cursor: cursor}),
			"of another filter": s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{Cursor: cursor, Filter: &approvalv1.ApprovalFilter{Server: "x"}}),
			"of none":           s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{Cursor: "1.x"}),
		} {
			_, err := w.Recv()
			if wantError(t, err, codes.InvalidArgument, "CURSOR_INVALID"); t.Failed() {
				t.Fatal(name)
			}
		}
	})
}

func TestWatchApprovals_EndsWhenTheTokenIsRevoked(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		w := s.watch(t, "ana", &approvalv1.WatchApprovalsRequest{})
		next(t, w)
		if err := s.tokens.Replace(nil); err != nil {
			t.Fatal(err)
		}
		_, err := w.Recv()
		wantError(t, err, codes.Unauthenticated, "CREDENTIAL_ENDED")
	})
}

func TestWatchApprovals_SendsMovesOfAnotherReplica(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Source = sqlstoretest.Postgres(t)
	one, two := serve(t, cfg), serve(t, cfg)
	w := two.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{})
	next(t, w)
	for i := range 3 {
		a := one.ask(t, fmt.Sprintf(`{"n":%d}`, i)).GetApproval()
		if m := next(t, w); m.GetApproval().GetId() != a.GetId() {
			t.Errorf("got %v, want %s", m, a.GetId())
		}
	}
}
