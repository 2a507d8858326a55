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
	// pollInterval is the interval at which a watch checks for changes that other processes made.
	pollInterval = 500 * time.Millisecond
	// heartbeatInterval is the time without messages after which a watch sends an empty message. The empty message may be
	// up to pollInterval late.
	heartbeatInterval = 8 * time.Second
	// batchSize is the maximum number of approvals that are read in one transaction.
	batchSize = 100
)

// WatchApprovals implements approvalv1.ApprovalServiceServer.
func (s *Service) WatchApprovals(req *approvalv1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[approvalv1.WatchApprovalsResponse]) error {
	w := &watch{Service: s, caller: authn.CallerOf(stream.Context()), req: req, stream: stream, lastSent: time.Now()}
	w.filter = storeFilter(w.caller, req.GetFilter())
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
	// lastMove is the number of the newest transition that was sent. lastSent is the time of the last message.
	lastMove int64
	lastSent time.Time
	// lastApproval is the approval that was sent last. It is nil before the first approval is sent.
	lastApproval *approvalv1.Approval
}

func (w *watch) run(ctx context.Context) error {
	if err := w.sendCurrent(ctx); err != nil {
		return err
	}
	w.filter.States = nil // the filter's states select only the approvals that are sent first
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
		case <-time.After(pollInterval):
		}
		if err := w.checkToken(); err != nil {
			return err
		}
		if time.Since(w.lastSent) >= heartbeatInterval {
			if err := w.send(nil, true); err != nil {
				return err
			}
		}
	}
}

// sendCurrent sends the current approvals. If the request has a cursor, sendCurrent instead finds the position from
// which to resume.
func (w *watch) sendCurrent(ctx context.Context) error {
	if w.req.GetCursor() != "" {
		at, err := w.parseCursor(w.req.GetCursor())
		if err != nil {
			return err
		}
		w.lastMove = at
		return nil
	}
	var standing []*lifecycle.Record
	err := w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if standing, err = w.currentApprovals(ctx, tx); err != nil {
			return err
		}
		w.lastMove, err = tx.NewestMove(ctx)
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

// currentApprovals reads the approvals that are sent first, in the order in which they were opened. A watch of one
// approval receives that approval in any state. Every other watch receives the approvals in the filter's states. If the
// filter has no states, it receives all approvals that have not ended.
func (w *watch) currentApprovals(ctx context.Context, tx *store.Tx) ([]*lifecycle.Record, error) {
	f := w.filter
	if f.ID == "" && len(f.States) == 0 {
		f.States = openStates
	}
	var out []*lifecycle.Record
	for before := int64(0); ; {
		found, err := tx.List(ctx, f, before, batchSize)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			before = l.Opened
			if w.matchesForMe(w.caller, w.req.GetFilter(), l.Record) {
				out = append(out, l.Record)
			}
		}
		if len(found) < batchSize {
			slices.Reverse(out)
			return out, nil
		}
	}
}

// openStates lists the states that are not final.
var openStates = []approvalv1.ApprovalState{
	approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED,
	approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED, approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN,
}

// catchUp sends the approvals that have changed since the transition w.lastMove. It reports whether the watch is over.
// A watch of one approval is over when the approval has ended.
func (w *watch) catchUp(ctx context.Context) (bool, error) {
	for {
		var found []store.Listed
		err := w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			found, err = tx.MovedSince(ctx, w.filter, w.lastMove, batchSize)
			return err
		})
		if err != nil {
			return false, err
		}
		for _, l := range found {
			w.lastMove = l.Moved
			if w.req.GetFilter().GetForMe() && !w.mayVote(deciderOf(w.caller), l.Record) {
				continue
			}
			if err := w.send(l.Approval, true); err != nil {
				return false, err
			}
		}
		if w.req.GetApprovalId() != "" {
			if over, err := w.hasEnded(ctx); over || err != nil {
				return over, err
			}
		}
		if len(found) < batchSize {
			return false, nil
		}
	}
}

// hasEnded reports whether the watched approval has ended and the client knows this. The client knows this from this
// stream, or from the stream that returned the request's cursor.
func (w *watch) hasEnded(ctx context.Context) (over bool, err error) {
	if w.lastApproval != nil {
		return w.lastApproval.GetEnded() != nil, nil
	}
	err = w.store.Look(ctx, func(ctx context.Context, tx *store.Tx) error {
		found, err := tx.List(ctx, w.filter, 0, 1)
		if err == nil && len(found) == 0 {
			return store.ErrNotFound
		}
		over = err == nil && found[0].Ended() && found[0].Moved <= w.lastMove
		return err
	})
	return over, err
}

func (w *watch) send(a *approvalv1.Approval, synced bool) error {
	if a != nil {
		w.lastApproval = a
	}
	resp := &approvalv1.WatchApprovalsResponse{Approval: a, Synced: synced}
	if synced {
		resp.Cursor = w.cursor()
	}
	w.lastSent = time.Now()
	return w.stream.Send(resp)
}

// cursor returns the position at which a client can resume this watch. It contains w.lastMove and the digest of the
// watch.
func (w *watch) cursor() string { return fmt.Sprintf("%d.%s", w.lastMove, w.digest()) }

func (w *watch) parseCursor(cursor string) (int64, error) {
	place, kind, _ := strings.Cut(cursor, ".")
	at, err := strconv.ParseInt(place, 10, 64)
	if err != nil || at < 0 || kind != w.digest() {
		return 0, errCursor
	}
	return at, nil
}

// digest returns a digest of the tenant, the approval and the filter. A cursor contains this digest, because it is
// valid only for the same watch.
func (w *watch) digest() string {
	sum := sha256.Sum256([]byte(w.caller.Tenant() + "\x00" + w.req.GetApprovalId() + "\x00" + filterDigest(w.req.GetFilter())))
	return hex.EncodeToString(sum[:8])
}

func filterDigest(f *approvalv1.ApprovalFilter) string {
	raw, _ := proto.MarshalOptions{Deterministic: true}.Marshal(f) // Marshal does not fail for a valid message
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// checkToken returns errCredential if the person's token was revoked.
func (w *watch) checkToken() error {
	p := w.caller.Person
	if p == nil {
		return nil
	}
	live, err := w.tokens.PrincipalsOf(p.GetTenant(), p.GetSubject())
	if err != nil {
		return nil //nolint:nilerr // the current tokens are unknown, but the token was valid when the watch began
	}
	if !slices.ContainsFunc(live, func(t *identityv1.Principal) bool { return t.GetTokenId() == p.GetTokenId() }) {
		return errCredential
	}
	return nil
}
