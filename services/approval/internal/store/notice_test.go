package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// channels are the channels of all stores in these tests.
var channels = []store.Channel{{Name: "all"}, {Name: "elsewhere", Tenant: "other"}, {Name: "late", After: 0.5}}

func leaseNotices(t *testing.T, s *store.Store, channel string, lease time.Duration) (out []*store.Notice) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		out, err = tx.LeaseNotices(ctx, channel, lease, 100)
		return err
	})
	return out
}

// leaseNoticesLater leases the notices of a channel as if the given time had passed.
func leaseNoticesLater(t *testing.T, s *store.Store, channel string, after time.Duration) (out []*store.Notice) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		tx.Now = tx.Now.Add(after)
		out, err = tx.LeaseNotices(ctx, channel, time.Hour, 100)
		return err
	})
	return out
}

func endNotice(t *testing.T, s *store.Store, n *store.Notice, how store.NoticeEnd, receipt string) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) error { return tx.EndNotice(ctx, n, how, receipt) })
}

// sentNotices leases and ends the due notices of a channel until no due notice is left. It returns the id, the kind and
// the state of each.
func sentNotices(t *testing.T, s *store.Store, channel string) (out []string) {
	t.Helper()
	for {
		notices := leaseNotices(t, s, channel, time.Hour)
		if len(notices) == 0 {
			return out
		}
		for _, n := range notices {
			out = append(out, n.ID+" "+n.Kind+" "+lifecycle.StateName(n.Approval.GetState()))
			endNotice(t, s, n, store.Sent, "")
		}
	}
}

func changeRecord(t *testing.T, s *store.Store, id string, fn func(r *lifecycle.Record, now time.Time) error) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, "acme", id)
		if err != nil {
			return err
		}
		return errors.Join(fn(r, tx.Now), tx.Save(ctx, r))
	})
}

func TestNotices_AreWrittenForMoves(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a", func(q *lifecycle.OpenRequest) { q.Decision.Approval.Quorum = 2 }))
		approve(t, s, "a", "ben") // the first of two required votes causes no notice
		changeRecord(t, s, "a", func(r *lifecycle.Record, now time.Time) error {
			r.UpdateDecision(&policyv1.Decision{Approval: &policyv1.ApprovalTerms{Quorum: 1}}, r.Times, now)
			return nil
		})
		approve(t, s, "a", "ben")
		changeRecord(t, s, "a", func(r *lifecycle.Record, now time.Time) error {
			refused, err := r.Claim(claimRequest("c", 1), now)
			if refused != nil {
				return fmt.Errorf("refused: %v", refused)
			}
			return err
		})
		changeRecord(t, s, "a", func(r *lifecycle.Record, now time.Time) error {
			_, err := r.Complete("c", "gw", approvalv1.CallOutcome_CALL_OUTCOME_DONE, now)
			return err
		})
		openApproval(t, s, openRequest("b", func(q *lifecycle.OpenRequest) {
			q.Requester = &identityv1.Principal{Tenant: "other", Subject: "bot"}
			q.Times.Decide = 10 * time.Millisecond
		}))
		<-time.After(20 * time.Millisecond)
		want := []string{"a-1-all pending pending", "b-1-all pending pending", "a-3-all pending pending", "b-2-all expired expired", "a-4-all approved approved", "a-6-all done done"}
		if diff := cmp.Diff(want, sentNotices(t, s, "all")); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"b-1-elsewhere pending pending", "b-2-elsewhere expired expired"}, sentNotices(t, s, "elsewhere")); diff != "" {
			t.Errorf("notices of another tenant (-want +got):\n%s", diff)
		}
	})
}

// In one transaction, a test requests an approval and records the confirmation by the person who uses the agent. The
// store writes no notice of kind pending.
func TestNotices_SkipPendingIfApprovedAtOnce(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			r := lifecycle.Open(openRequest("a"), tx.Now)
			if err := r.RecordSelfVote(approvalv1.Verdict_VERDICT_APPROVE, openRequest("a").Decision, 0, tx.Now); err != nil {
				return err
			}
			return tx.Save(ctx, r)
		})
		if diff := cmp.Diff([]string{"a-2-all approved approved"}, sentNotices(t, s, "all")); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	})
}

func TestNotices_AreRolledBackWithTheMove(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s, boom := at.open(t), errors.New("boom")
		err := s.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.Save(ctx, lifecycle.Open(openRequest("a"), tx.Now)), boom)
		})
		if !errors.Is(err, boom) {
			t.Fatal(err)
		}
		if got := sentNotices(t, s, "all"); got != nil {
			t.Errorf("sent %v", got)
		}
	})
}

// A sender is killed after it has leased a notice. When the lease expires, another sender receives the notice with the
// same id. The killed sender can no longer change the notice.
func TestLeaseNotices_ReturnsANoticeAgainAfterTheLease(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a"))
		killed := leaseNotices(t, s, "all", time.Hour)
		if len(killed) != 1 || killed[0].Attempt != 1 {
			t.Fatalf("taken: %v", killed)
		}
		if again := leaseNotices(t, s, "all", time.Hour); len(again) != 0 {
			t.Errorf("taken by two: %v", again)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = at.open(t)
		again := leaseNoticesLater(t, s, "all", 2*time.Hour)
		if len(again) != 1 || again[0].ID != killed[0].ID || again[0].Attempt != 2 {
			t.Fatalf("taken again: %v", again)
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.RetryNotice(ctx, killed[0], 0), tx.EndNotice(ctx, killed[0], store.GivenUp, ""))
		})
		if third := leaseNotices(t, s, "all", time.Hour); len(third) != 0 {
			t.Errorf("a sender without the lease made the notice due: %v", third)
		}
		endNotice(t, s, again[0], store.Sent, "")
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			for how, want := range map[store.NoticeEnd]int{store.Sent: 1, store.GivenUp: 0} {
				if n, err := tx.CountNotices(ctx, "all", how); n != want || err != nil {
					t.Errorf("%d notices ended as %d, want %d, %v", n, how, want, err)
				}
			}
			return nil
		})
	})
}

// A channel receives the notices of an approval in the order of the approval's transitions, even after failures.
func TestLeaseNotices_KeepsTheOrderOfMoves(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a"))
		approve(t, s, "a", "ben")
		openApproval(t, s, openRequest("b"))
		first := leaseNotices(t, s, "all", time.Hour)
		if len(first) != 2 || first[0].ID != "a-1-all" || first[1].ID != "b-1-all" {
			t.Fatalf("taken: %v", first)
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			return tx.RetryNotice(ctx, first[0], 10*time.Minute)
		})
		if early := leaseNotices(t, s, "all", time.Hour); len(early) != 0 {
			t.Errorf("taken before its pause is over: %v", early)
		}
		again := leaseNoticesLater(t, s, "all", 11*time.Minute)
		if len(again) != 1 || again[0].ID != "a-1-all" {
			t.Fatalf("taken: %v", again)
		}
		endNotice(t, s, again[0], store.Sent, "message 7")
		last := leaseNotices(t, s, "all", time.Hour)
		if len(last) != 1 || last[0].Kind != "approved" || !cmp.Equal(last[0].Receipts, []string{"message 7"}) {
			t.Errorf("taken: %v", last)
		}
	})
}

func TestLeaseNotices_ReturnsAnEscalationWhenDue(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a", func(q *lifecycle.OpenRequest) { q.Times.Decide = 20 * time.Minute }))
		if early := leaseNotices(t, s, "late", time.Hour); len(early) != 0 {
			t.Errorf("at once: %v", early)
		}
		due := leaseNoticesLater(t, s, "late", 11*time.Minute)
		if len(due) != 1 || due[0].ID != "a-1-late" || due[0].Kind != "escalated" || lifecycle.StateName(due[0].Approval.GetState()) != "pending" {
			t.Errorf("after half of the time: %v", due)
		}
	})
}

// Many senders lease notices concurrently. Each notice is leased to only one of them.
func TestLeaseNotices_LeasesANoticeToOneSender(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		replicas := []*store.Store{at.open(t)}
		for at.replicas && len(replicas) < 4 {
			replicas = append(replicas, at.open(t))
		}
		const notices, senders = 20, 16
		for i := range notices {
			openApproval(t, replicas[0], openRequest(fmt.Sprintf("a%d", i)))
		}
		var mu sync.Mutex
		taken := make(map[string]int)
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				var got []*store.Notice
				err := replicas[i%len(replicas)].Do(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
					got, err = tx.LeaseNotices(ctx, "all", time.Hour, 3)
					return err
				})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				for _, n := range got {
					taken[n.ID]++
				}
			})
		}
		wg.Wait()
		for id, n := range taken {
			if n != 1 {
				t.Errorf("%s was taken %d times", id, n)
			}
		}
		if len(taken) != notices {
			t.Errorf("%d of %d were taken", len(taken), notices)
		}
	})
}

func TestDeleteOldNotices_DeletesEndedNotices(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a"))
		endNotice(t, s, leaseNotices(t, s, "all", time.Hour)[0], store.GivenUp, "")
		kept := func(older time.Duration) (n int) {
			do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
				if err := tx.DeleteOldNotices(ctx, older); err != nil {
					return err
				}
				n, err = tx.CountNotices(ctx, "all", store.GivenUp)
				return err
			})
			return n
		}
		if n := kept(time.Hour); n != 1 {
			t.Errorf("%d are stored within the hour", n)
		}
		if n := kept(0); n != 0 {
			t.Errorf("%d are still stored", n)
		}
	})
}
