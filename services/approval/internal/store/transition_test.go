package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

type changeRecorder struct {
	mu      sync.Mutex
	steps   []string
	last    store.Transition
	givenUp int64
}

func (l *changeRecorder) observe(_ context.Context, c store.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range c.Transitions {
		l.steps = append(l.steps, lifecycle.StateName(s.From)+">"+lifecycle.StateName(s.To))
		l.last = s
	}
	l.givenUp += c.GivenUp
}

// wantMoves checks the transitions that were reported since the last call to wantMoves.
func (l *changeRecorder) wantMoves(t *testing.T, what string, steps ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(steps, l.steps); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	l.steps = nil
}

// Two processes change approvals. Each transition is reported once, by the store that made it, together with the time
// at which people were asked.
func TestObserve_ReportsEachMoveOnce(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		var mine, other changeRecorder
		s := at.observed(t, mine.observe)
		openApproval(t, s, openRequest("a"))
		mine.wantMoves(t, "opened", ">pending")
		approver := s
		if at.replicas {
			approver = at.observed(t, other.observe)
		}
		approve(t, approver, "a", "ben")
		if at.replicas {
			other.wantMoves(t, "approved by another process", "pending>approved")
			mine.wantMoves(t, "a move of another process")
		} else {
			mine.wantMoves(t, "approved", "pending>approved")
		}
		get(t, s, "a")
		mine.wantMoves(t, "read")

		openApproval(t, s, openRequest("b", func(q *lifecycle.OpenRequest) { q.Times.Decide = time.Millisecond }))
		for get(t, s, "b").Approval.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
			continue // repeat until the time to decide, 1 ms, is over
		}
		mine.wantMoves(t, "expired", ">pending", "pending>expired")
		if got := mine.last.Time.Sub(mine.last.LastAsked); got != time.Millisecond {
			t.Errorf("people had %v", got)
		}
	})
}

var errRefused = errors.New("refused")

// A transition in a transaction that was rolled back is not reported. A transition in a transaction that ran twice is
// reported once.
func TestObserve_ReportsOnlyCommittedMoves(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		var seen changeRecorder
		s := at.observed(t, seen.observe)
		err := s.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.Save(ctx, lifecycle.Open(openRequest("a"), tx.Now)), errRefused)
		})
		if !errors.Is(err, errRefused) {
			t.Fatal(err)
		}
		seen.wantMoves(t, "rolled back")
		if !at.replicas {
			return // SQLite has a single connection for writing, so transactions don't conflict
		}
		rival, runs := at.open(t), 0
		look(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.NewestMove(ctx); err != nil {
				return err
			}
			if runs++; runs == 1 {
				openApproval(t, rival, openRequest("b"))
			}
			return tx.Save(ctx, lifecycle.Open(openRequest("a"), tx.Now))
		})
		if runs != 2 {
			t.Errorf("the transaction ran %d times; the test needs 2", runs)
		}
		seen.wantMoves(t, "committed at the second run", ">pending")
	})
}

// look runs fn in a transaction that does not wait for other transactions, so that fn can conflict with them.
func look(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := s.Look(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// A test ends the same notice twice with the result GivenUp. The store counts the notice once.
func TestEndNotice_CountsAGivenUpNoticeOnce(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		var seen changeRecorder
		s := at.observed(t, seen.observe)
		openApproval(t, s, openRequest("a"))
		taken := leaseNotices(t, s, "all", time.Hour)[0]
		for range 2 {
			endNotice(t, s, taken, store.GivenUp, "")
		}
		if seen.givenUp != 1 {
			t.Errorf("%d notices were counted, want 1", seen.givenUp)
		}
	})
}

// Two transactions conflict, and one of them runs again. Each transaction is reported once.
func TestObserve_ReportsATransactionThatRanTwiceOnce(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		if !at.replicas {
			return // SQLite has a single connection for writing, so transactions don't conflict
		}
		var mine, others changeRecorder
		s, rival := at.observed(t, mine.observe), at.observed(t, others.observe)
		openApproval(t, s, openRequest("a"))
		openApproval(t, s, openRequest("b"))
		taken := leaseNotices(t, s, "all", time.Hour)
		// Each transaction counts rows that the other transaction changes, so the two transactions conflict.
		giveUp := func(ctx context.Context, tx *store.Tx, n *store.Notice) error {
			_, err := tx.CountNotices(ctx, "all", store.GivenUp)
			return errors.Join(err, tx.EndNotice(ctx, n, store.GivenUp, ""))
		}
		runs := 0
		look(t, s, func(ctx context.Context, tx *store.Tx) error {
			err := giveUp(ctx, tx, taken[0])
			if runs++; runs == 1 {
				do(t, rival, func(ctx context.Context, tx *store.Tx) error { return giveUp(ctx, tx, taken[1]) })
			}
			return err
		})
		if runs != 2 {
			t.Errorf("the transaction ran %d times; the test needs 2", runs)
		}
		if mine.givenUp != 1 || others.givenUp != 1 {
			t.Errorf("%d and %d notices were counted, want 1 each", mine.givenUp, others.givenUp)
		}
	})
}

func TestCountOpen_CountsByState(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		for _, id := range []string{"a", "b", "c"} {
			openApproval(t, s, openRequest(id))
		}
		approve(t, s, "a", "ben")
		openApproval(t, s, openRequest("gone", func(q *lifecycle.OpenRequest) { q.Times.Decide = -time.Second }))
		var got map[approvalv1.ApprovalState]int64
		do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			got, err = tx.CountOpen(ctx)
			return err
		})
		want := map[approvalv1.ApprovalState]int64{approvalv1.ApprovalState_APPROVAL_STATE_PENDING: 2, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED: 1}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

func TestOpen_RequiresObserve(t *testing.T) {
	t.Parallel()
	cfg := store.Config{Source: "sqlite", File: filepath.Join(t.TempDir(), "x.db"), Log: slog.New(slog.DiscardHandler)}
	if s, err := store.Open(t.Context(), cfg); err == nil {
		_ = s.Close()
		t.Error("a store without Observe was opened")
	}
}

// Many transitions are due, and the caller's function fails. The transitions that earlier, separate transactions made
// are kept.
func TestDo_MakesDueMovesInSeparateTransactions(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		const many = 43
		var seen changeRecorder
		s := at.observed(t, seen.observe)
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			for n := range many {
				r := lifecycle.Open(openRequest(fmt.Sprint("q", n), func(q *lifecycle.OpenRequest) { q.Times.Decide = time.Millisecond }), tx.Now)
				if err := tx.Save(ctx, r); err != nil {
					return err
				}
			}
			return nil
		})
		<-time.After(2 * time.Millisecond)
		err := s.Do(t.Context(), func(context.Context, *store.Tx) error { return errRefused })
		if moved := len(seen.steps) - many; !errors.Is(err, errRefused) || moved != 40 {
			t.Errorf("%v, and %d of %d have moved", err, moved, many)
		}
		do(t, s, func(context.Context, *store.Tx) error { return nil })
		if moved := len(seen.steps) - many; moved != many {
			t.Errorf("after the next transaction, %d of %d have moved", moved, many)
		}
	})
}

// BenchmarkDo_ConcurrentRequests measures the longest wait among many requests, and the number of runs per transaction.
func BenchmarkDo_ConcurrentRequests(b *testing.B) {
	s, err := store.Open(b.Context(), store.Config{
		Source: sqlstoretest.Postgres(b), Log: slog.New(slog.DiscardHandler), Observe: func(context.Context, store.Changes) {},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var n, runs, slowest atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			began := time.Now()
			id := fmt.Sprint("q", n.Add(1))
			err := s.Do(b.Context(), func(ctx context.Context, tx *store.Tx) error {
				runs.Add(1)
				return tx.Save(ctx, lifecycle.Open(openRequest(id), tx.Now))
			})
			if err != nil {
				b.Error(err)
			}
			took := int64(time.Since(began))
			for seen := slowest.Load(); took > seen && !slowest.CompareAndSwap(seen, took); seen = slowest.Load() {
				continue
			}
		}
	})
	b.ReportMetric(float64(runs.Load())/float64(b.N), "runs/op")
	b.ReportMetric(float64(slowest.Load())/1e6, "slowest-ms")
}
