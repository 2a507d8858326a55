package approval

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// poll is how often a watch reads the moves that other processes made.
	poll = 500 * time.Millisecond
	// beat is how long a watch may be silent before it sends an empty message. A message may be later by up to poll.
	beat = 8 * time.Second
	// batch is how many approvals are read in one transaction.
	batch = 100
)

// WatchApprovals implements approvalv1.ApprovalServiceServer.
func (s *Service) WatchApprovals(req *approvalv1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[approvalv1.WatchApprovalsResponse]) error {
	w := &watch{Service: s, caller: authn.CallerOf(stream.Context()), req: req, stream: stream, heard: time.Now()}
	w.filter = filterOf(w.caller, req.GetFilter())
	w.filter.ID = req.GetApprovalId()
	return toStatus(w.run(stream.Context()))
}

// watch is one WatchApprovals stream.
type watch struct {
	*Service
	caller *authn.Caller
	req    *approvalv1.WatchApprovalsRequest
	stream grpc.ServerStreamingServer[approvalv1.WatchApprovalsResponse]
	filter store.Filter
	// at is the number of the newest move that was sent. heard is when the last message was sent.
	at    int64
	heard time.Time
	// last is the approval that was sent last; nil until an approval was sent.
	last *approvalv1.Approval
}

func (w *watch) run(ctx context.Context) error {
	if err := w.begin(ctx); err != nil {
		return err
	}
	w.filter.States = nil // the states of the filter apply only to the approvals that are sent first
	for {
		moved := w.store.Moved()
		over, err := w.catchUp(ctx)
		if err != nil || over {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-moved:
		case <-time.After(poll):
		}
		if err := w.stillKnown(); err != nil {
			return err
		}
		if time.Since(w.heard) >= beat {
			if err := w.send(nil, true); err != nil {
				return err
			}
		}
	}
}

// begin sends the current approvals, or finds where to resume.
func (w *watch) begin(ctx context.Context) error {
	if w.req.GetCursor() != "" {
		at, err := w.resume(w.req.GetCursor())
		if err != nil {
			return err
		}
		w.at = at
		return nil
	}
	var standing []*lifecycle.Record
	err := w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if standing, err = w.standing(ctx, tx); err != nil {
			return err
		}
		w.at, err = tx.Moves(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if w.req.GetApprovalId() != "" && len(standing) == 0 {
		return store.ErrNotFound
	}
	for i, r := range standing {
		if err := w.send(r.Approval, i == len(standing)-1); err != nil {
			return err
		}
	}
	if len(standing) == 0 {
		return w.send(nil, true)
	}
	return nil
}

// standing reads the approvals that are sent first, in the order in which they were opened. A watch of one approval gets
// that approval in any state. Every other watch gets the approvals in the filter's states, or, if the filter names no
// state, all approvals that have not ended.
func (w *watch) standing(ctx context.Context, tx *store.Tx) ([]*lifecycle.Record, error) {
	f := w.filter
	if f.ID == "" && len(f.States) == 0 {
		f.States = open
	}
	var out []*lifecycle.Record
	for before := int64(0); ; {
		found, err := tx.List(ctx, f, before, batch)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			before = l.Opened
			if w.picks(w.caller, w.req.GetFilter(), l.Record) {
				out = append(out, l.Record)
			}
		}
		if len(found) < batch {
			slices.Reverse(out)
			return out, nil
		}
	}
}

// open lists the states that an approval may leave.
var open = []approvalv1.ApprovalState{
	approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED,
	approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN,
}

// catchUp sends the approvals that moved since w.at, and reports whether the watch is over. The watch of one approval
// is over when that approval has ended.
func (w *watch) catchUp(ctx context.Context) (bool, error) {
	for {
		var found []store.Listed
		err := w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			found, err = tx.MovedSince(ctx, w.filter, w.at, batch)
			return err
		})
		if err != nil {
			return false, err
		}
		for _, l := range found {
			w.at = l.Moved
			if err := w.send(l.Approval, true); err != nil {
				return false, err
			}
		}
		if w.req.GetApprovalId() != "" {
			if over, err := w.ended(ctx); over || err != nil {
				return over, err
			}
		}
		if len(found) < batch {
			return false, nil
		}
	}
}

// ended reports whether the watched approval has ended and its end was sent or was known to the cursor.
func (w *watch) ended(ctx context.Context) (over bool, err error) {
	if w.last != nil {
		return w.last.GetEnded() != nil, nil
	}
	err = w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err := tx.List(ctx, w.filter, 0, 1)
		if err == nil && len(found) == 0 {
			return store.ErrNotFound
		}
		over = err == nil && found[0].Ended() && found[0].Moved <= w.at
		return err
	})
	return over, err
}

func (w *watch) send(a *approvalv1.Approval, synced bool) error {
	if a != nil {
		w.last = a
	}
	resp := &approvalv1.WatchApprovalsResponse{Approval: a, Synced: synced}
	if synced {
		resp.Cursor = w.cursor()
	}
	w.heard = time.Now()
	return w.stream.Send(resp)
}

// cursor returns the position at which a client can resume this watch: w.at and the digest of the watch.
func (w *watch) cursor() string { return fmt.Sprintf("%d.%s", w.at, w.kind()) }

func (w *watch) resume(cursor string) (int64, error) {
	place, kind, _ := strings.Cut(cursor, ".")
	at, err := strconv.ParseInt(place, 10, 64)
	if err != nil || at < 0 || kind != w.kind() {
		return 0, errCursor
	}
	return at, nil
}

// kind returns a digest of the tenant, the approval and the filter. A cursor contains this digest, so that the cursor
// works only for the same watch.
func (w *watch) kind() string {
	sum := sha256.Sum256([]byte(w.caller.Tenant() + "\x00" + w.req.GetApprovalId() + "\x00" + digestOf(w.req.GetFilter())))
	return hex.EncodeToString(sum[:8])
}

// digestOf returns a digest of the filter.
func digestOf(f *approvalv1.ApprovalFilter) string {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(f) // a valid message never fails
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// stillKnown returns errCredential if the person's token was revoked.
func (w *watch) stillKnown() error {
	p := w.caller.Person
	if p == nil {
		return nil
	}
	live, err := w.tokens.PrincipalsOf(p.GetTenant(), p.GetSubject())
	if err != nil {
		return nil //nolint:nilerr // the tokens are not known at the moment; the token was valid when the watch began
	}
	if !slices.ContainsFunc(live, func(t *identityv1.Principal) bool { return t.GetTokenId() == p.GetTokenId() }) {
		return errCredential
	}
	return nil
}
