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

// ledger records the changes that a store reported to Observe.
type ledger struct {
	mu      sync.Mutex
	steps   []string
	last    store.Step
	givenUp int64
}

func (l *ledger) note(_ context.Context, c store.Changes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range c.Steps {
		l.steps = append(l.steps, lifecycle.StateName(s.From)+">"+lifecycle.StateName(s.To))
		l.last = s
	}
	l.givenUp += c.GivenUp
}

// wants checks the moves that were reported since the last call of wants.
func (l *ledger) wants(t *testing.T, what string, steps ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(steps, l.steps); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	l.steps = nil
}

// Each move is reported once, by the store that made it, with the time when people were asked.
func TestEveryMoveIsObserved(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		var mine, other ledger
		s := at.observed(t, mine.note)
		opened(t, s, question("a"))
		mine.wants(t, "opened", ">pending")
		approver := s
		if at.replicas {
			approver = at.observed(t, other.note)
		}
		approvedBy(t, approver, "a", "ben")
		if at.replicas {
			other.wants(t, "approved by another process", "pending>approved")
			mine.wants(t, "a move of another process")
		} else {
			mine.wants(t, "approved", "pending>approved")
		}
		get(t, s, "a")
		mine.wants(t, "read")

		opened(t, s, question("b", func(q *lifecycle.Question) { q.Times.Decide = time.Millisecond }))
		for get(t, s, "b").Approval.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
			continue // for a millisecond
		}
		mine.wants(t, "expired", ">pending", "pending>expired")
		if got := mine.last.Time.Sub(mine.last.Asked); got != time.Millisecond {
			t.Errorf("people had %v", got)
		}
	})
}

var errRefused = errors.New("refused")

// A move of a rolled back transaction is not reported, and a move of a transaction that ran twice is reported once.
func TestAMoveIsObservedOnceItIsCommitted(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		var seen ledger
		s := at.observed(t, seen.note)
		err := s.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.Save(ctx, lifecycle.Open(question("a"), tx.Now)), errRefused)
		})
		if !errors.Is(err, errRefused) {
			t.Fatal(err)
		}
		seen.wants(t, "rolled back")
		if !at.replicas {
			return // SQLite has one connection that writes, so transactions don't collide
		}
		rival, runs := at.open(t), 0
		look(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.Moves(ctx); err != nil {
				return err
			}
			if runs++; runs == 1 {
				opened(t, rival, question("b"))
			}
			return tx.Save(ctx, lifecycle.Open(question("a"), tx.Now))
		})
		if runs != 2 {
			t.Errorf("the transaction ran %d times; the test needs 2", runs)
		}
		seen.wants(t, "committed at the second run", ">pending")
	})
}

// look runs fn in a transaction that does not wait for other transactions, so that fn can collide with them.
func look(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := s.Look(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

// A notice that is given up twice is counted once.
func TestANoticeIsGivenUpOnce(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		var seen ledger
		s := at.observed(t, seen.note)
		opened(t, s, question("a"))
		taken := take(t, s, "all", time.Hour)[0]
		for range 2 {
			end(t, s, taken, store.GivenUp, "")
		}
		if seen.givenUp != 1 {
			t.Errorf("%d notices were counted, want 1", seen.givenUp)
		}
	})
}

// A transaction whose commit collides and which runs again is reported once.
func TestNothingIsObservedBeforeTheCommit(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		if !at.replicas {
			return // SQLite has one connection that writes, so transactions don't collide
		}
		var mine, others ledger
		s, rival := at.observed(t, mine.note), at.observed(t, others.note)
		opened(t, s, question("a"))
		opened(t, s, question("b"))
		taken := take(t, s, "all", time.Hour)
		// Each transaction counts the rows that the other changes, so the two can't be serialized.
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

func TestOpenApprovalsAreCounted(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		s := at.open(t)
		for _, id := range []string{"a", "b", "c"} {
			opened(t, s, question(id))
		}
		approvedBy(t, s, "a", "ben")
		opened(t, s, question("gone", func(q *lifecycle.Question) { q.Times.Decide = -time.Second }))
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

func TestAStoreThatNobodyObservesIsRefused(t *testing.T) {
	t.Parallel()
	cfg := store.Config{Source: "sqlite", File: filepath.Join(t.TempDir(), "x.db"), Log: slog.New(slog.DiscardHandler)}
	if s, err := store.Open(t.Context(), cfg); err == nil {
		_ = s.Close()
		t.Error("a store without Observe was opened")
	}
}

// Many due moves are made in several transactions. If the caller's function fails, the moves of the earlier transactions
// stay.
func TestALotThatIsDueMovesByItself(t *testing.T) {
	each(t, func(t *testing.T, at site) {
		const many = 43
		var seen ledger
		s := at.observed(t, seen.note)
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			for n := range many {
				r := lifecycle.Open(question(fmt.Sprint("q", n), func(q *lifecycle.Question) { q.Times.Decide = time.Millisecond }), tx.Now)
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

// BenchmarkManyAskAtOnce measures how long the slowest of many requests waits, and how often a transaction runs.
func BenchmarkManyAskAtOnce(b *testing.B) {
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
				return tx.Save(ctx, lifecycle.Open(question(id), tx.Now))
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
