package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }

// storeKind is a store on SQLite or on PostgreSQL.
type storeKind struct {
	// open opens the store. Every call opens the same tables.
	open     func(t *testing.T) *store.Store
	observed func(t *testing.T, observe func(context.Context, store.Changes)) *store.Store
	// replicas is true if several processes may open the store at the same time.
	replicas bool
}

// forEachStore runs the test story twice in parallel: on SQLite and on PostgreSQL.
func forEachStore(t *testing.T, story func(t *testing.T, s storeKind)) {
	t.Helper()
	t.Parallel()
	opens := func(cfg store.Config) (at storeKind) {
		at.observed = func(t *testing.T, observe func(context.Context, store.Changes)) *store.Store {
			t.Helper()
			cfg := cfg
			cfg.Log, cfg.Channels, cfg.Observe = slog.New(slog.DiscardHandler), channels, observe
			s, err := store.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		at.open = func(t *testing.T) *store.Store {
			t.Helper()
			return at.observed(t, func(context.Context, store.Changes) {})
		}
		return at
	}
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		story(t, opens(store.Config{Source: "sqlite", File: filepath.Join(t.TempDir(), "approvals.db")}))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		at := opens(store.Config{Source: sqlstoretest.Postgres(t)})
		at.replicas = true
		story(t, at)
	})
}

var principal = &identityv1.Principal{
	Tenant: "acme", Subject: "bot", Agent: "dev", Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "carl"}},
}

func openRequest(id string, change ...func(*lifecycle.OpenRequest)) lifecycle.OpenRequest {
	q := lifecycle.OpenRequest{
		ID: id, DecisionID: "d-" + id, Digest: []byte("digest-" + id), Requester: principal,
		Call: &approvalv1.BoundCall{ServerIdentity: "http x", Call: &policyv1.Call{
			Server: "pay", Name: "refund", ParamsJson: `{"name":"refund"}`, DefinitionDigest: []byte("definition"),
		}},
		Decision: &policyv1.Decision{
			Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, RuleDigest: []byte("rule"), Approval: &policyv1.ApprovalTerms{Quorum: 1},
		},
		Times: lifecycle.Times{Decide: time.Hour, Execute: time.Hour},
	}
	for _, f := range change {
		f(&q)
	}
	return q
}

func do(t *testing.T, s *store.Store, fn func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()
	if err := s.Do(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func openApproval(t *testing.T, s *store.Store, q lifecycle.OpenRequest) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) error { return tx.Save(ctx, lifecycle.Open(q, tx.Now)) })
}

func approve(t *testing.T, s *store.Store, id, person string) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, "acme", id)
		if err != nil {
			return err
		}
		err = r.Vote(lifecycle.Ballot{
			Voter: &identityv1.Principal{Tenant: "acme", Subject: person}, Verdict: approvalv1.Verdict_VERDICT_APPROVE,
			ShownDigest: []byte("v"), ViewDigest: []byte("v"), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN,
		}, tx.Now)
		return errors.Join(err, tx.Save(ctx, r))
	})
}

func get(t *testing.T, s *store.Store, id string) (out *lifecycle.Record) {
	t.Helper()
	do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
		out, err = tx.Get(ctx, "acme", id)
		return err
	})
	return out
}

func claimRequest(id string, attempt int32) lifecycle.ClaimRequest {
	return lifecycle.ClaimRequest{
		Claim: lifecycle.Claim{ID: id, Holder: "gw", Lease: "l-" + id, Attempt: attempt}, Decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW},
		Definition: []byte("definition"), ServerIdentity: "http x", Duration: time.Minute,
		VoidReason: func(*approvalv1.Vote) string { return "" },
	}
}

func TestSave_StoresTheWholeRecord(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		var want *lifecycle.Record
		openApproval(t, s, openRequest("a"))
		approve(t, s, "a", "ben")
		do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
			if want, err = tx.Get(ctx, "acme", "a"); err != nil {
				return err
			}
			if refused, err := want.Claim(claimRequest("c", 1), tx.Now); refused != nil || err != nil {
				return fmt.Errorf("%v, %w", refused, err)
			}
			return tx.Save(ctx, want)
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = at.open(t)
		if diff := cmp.Diff(want, get(t, s, "a"), protocmp.Transform()); diff != "" {
			t.Errorf("the record that was read (-saved +read):\n%s", diff)
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			history, err := tx.History(ctx, "a", 100)
			var to []string
			for _, m := range history {
				to = append(to, lifecycle.StateName(m.GetTo()))
			}
			if diff := cmp.Diff([]string{"pending", "approved", "claimed"}, to); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
			if last, err := tx.History(ctx, "a", 1); err != nil || len(last) != 1 || last[0].GetVersion() != 3 {
				t.Errorf("the newest move: %v, %v", last, err)
			}
			return err
		})
	})
}

func TestDo_RollsBackAFailedTransaction(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s, boom := at.open(t), errors.New("boom")
		err := s.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.Save(ctx, lifecycle.Open(openRequest("a"), tx.Now)), boom)
		})
		if !errors.Is(err, boom) {
			t.Error(err)
		}
		err = s.Do(t.Context(), func(ctx context.Context, tx *store.Tx) error { _, err := tx.Get(ctx, "acme", "a"); return err })
		if !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	})
}

// The time to decide on an approval ends. The next transaction finds that the approval has expired, and the approval no
// longer counts as pending.
func TestDo_ExpiresADueApproval(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("b"))
		openApproval(t, s, openRequest("a", func(q *lifecycle.OpenRequest) { q.Times.Decide = 50 * time.Millisecond }))
		<-time.After(60 * time.Millisecond)
		if got := get(t, s, "b"); lifecycle.StateName(got.Approval.GetState()) != "pending" {
			t.Errorf("the approval with more time: %v", got.Approval)
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			if n, err := tx.Pending(ctx, store.PrincipalDigest(principal)); n != 1 || err != nil {
				t.Errorf("%d pending, want only the approval with more time: %v", n, err)
			}
			return nil
		})
		got := get(t, s, "a")
		if lifecycle.StateName(got.Approval.GetState()) != "expired" || got.Approval.GetVersion() != 2 || got.Call.GetCall().GetParamsJson() != "" {
			t.Errorf("the approval with less time: %v", got.Approval)
		}
	})
}

func TestPending_CountsForTheWholeChain(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a"))
		openApproval(t, s, openRequest("b", func(q *lifecycle.OpenRequest) { q.Requester = principal.GetChain()[0] }))
		counts := func() (bot, carl int) {
			do(t, s, func(ctx context.Context, tx *store.Tx) (err error) {
				if bot, err = tx.Pending(ctx, store.PrincipalDigest(principal)); err != nil {
					return err
				}
				carl, err = tx.Pending(ctx, store.PrincipalDigest(principal.GetChain()[0]))
				return err
			})
			return bot, carl
		}
		if bot, carl := counts(); bot != 1 || carl != 2 {
			t.Errorf("the agent has %d pending, the principal in its chain %d", bot, carl)
		}
		approve(t, s, "a", "ben")
		if bot, carl := counts(); bot != 0 || carl != 1 {
			t.Errorf("after one was approved: %d and %d", bot, carl)
		}
	})
}

func TestGet_HidesApprovalsOfOtherTenants(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("a"))
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.Get(ctx, "other", "a"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("another tenant gets %v", err)
			}
			if _, err := tx.Newest(ctx, "other", []byte("digest-a")); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("another tenant finds %v", err)
			}
			list, err := tx.List(ctx, store.Filter{Tenant: "other"}, 0, 10)
			if len(list) != 0 || err != nil {
				t.Errorf("another tenant lists %v, %v", list, err)
			}
			return nil
		})
	})
}

func ids(list []store.Listed) (out []string) {
	for _, l := range list {
		out = append(out, l.Approval.GetId())
	}
	return out
}

func TestList_FiltersAndPages(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		for _, id := range []string{"a", "b", "c", "d"} {
			openApproval(t, s, openRequest(id, func(q *lifecycle.OpenRequest) {
				if id == "c" {
					q.Call.Call.Server, q.Call.Call.Name = "mail", "send"
					q.Requester = &identityv1.Principal{Tenant: "acme", Subject: "eve"}
				}
			}))
		}
		approve(t, s, "b", "ben")
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			for name, tt := range map[string]struct {
				f    store.Filter
				want []string
			}{
				"all":       {store.Filter{}, []string{"d", "c", "b", "a"}},
				"one":       {store.Filter{ID: "b"}, []string{"b"}},
				"a state":   {store.Filter{States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_APPROVED}}, []string{"b"}},
				"states":    {store.Filter{States: []approvalv1.ApprovalState{1, 2}, Server: "pay"}, []string{"d", "b", "a"}},
				"a server":  {store.Filter{Server: "mail"}, []string{"c"}},
				"a tool":    {store.Filter{Name: "send"}, []string{"c"}},
				"a subject": {store.Filter{Subject: "eve"}, []string{"c"}},
				"a caller":  {store.Filter{Requester: principal}, []string{"d", "b", "a"}},
				"a holder":  {store.Filter{Holder: "gw"}, nil},
			} {
				tt.f.Tenant = "acme"
				list, err := tx.List(ctx, tt.f, 0, 10)
				if diff := cmp.Diff(tt.want, ids(list)); err != nil || diff != "" {
					t.Errorf("%s (-want +got):\n%s%v", name, diff, err)
				}
			}
			first, err := tx.List(ctx, store.Filter{Tenant: "acme"}, 0, 3)
			if err != nil {
				return err
			}
			rest, err := tx.List(ctx, store.Filter{Tenant: "acme"}, first[2].Opened, 3)
			if diff := cmp.Diff([]string{"a"}, ids(rest)); err != nil || diff != "" {
				t.Errorf("the second page (-want +got):\n%s%v", diff, err)
			}
			moved, err := tx.MovedSince(ctx, store.Filter{Tenant: "acme"}, first[1].Opened, 10)
			if diff := cmp.Diff([]string{"d", "b"}, ids(moved)); err != nil || diff != "" {
				t.Errorf("moved since c was opened (-want +got):\n%s%v", diff, err)
			}
			if n, err := tx.NewestMove(ctx); err != nil || n != moved[1].Moved {
				t.Errorf("%d moves, %v; the newest is %d", n, err, moved[1].Moved)
			}
			return nil
		})
	})
}

func TestGrants_FindsLiveGrants(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		withGrant := func(q *lifecycle.OpenRequest) {
			q.Decision.Approval.Grant = &policyv1.Grant{Calls: 2, Within: durationpb.New(time.Hour), Scope: "s"}
		}
		openApproval(t, s, openRequest("a", withGrant))
		other := lifecycle.Open(openRequest("b", withGrant, func(q *lifecycle.OpenRequest) { q.Call.Call.ParamsJson = `{"other":1}` }), time.Now())
		elsewhere := lifecycle.Open(openRequest("c", withGrant, func(q *lifecycle.OpenRequest) { q.Decision.Approval.Grant.Scope = "t" }), time.Now())
		found := func(r *lifecycle.Record) (n int) {
			do(t, s, func(ctx context.Context, tx *store.Tx) error {
				records, err := tx.Grants(ctx, r)
				n = len(records)
				return err
			})
			return n
		}
		if n := found(other); n != 0 {
			t.Errorf("%d grants before the approval", n)
		}
		approve(t, s, "a", "ben")
		if n := found(other); n != 1 {
			t.Errorf("%d grants cover another call of the tool", n)
		}
		if n := found(elsewhere); n != 0 {
			t.Errorf("%d grants cover a call of another scope", n)
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			if _, err := tx.Previous(ctx, other); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("a previous call, although no call has run: %v", err)
			}
			r, err := tx.Get(ctx, "acme", "a")
			if err != nil {
				return err
			}
			if refused, err := r.Claim(claimRequest("x", 1), tx.Now); refused != nil || err != nil {
				t.Error(refused, err)
			}
			if _, err := r.Complete("x", "gw", approvalv1.CallOutcome_CALL_OUTCOME_DONE, tx.Now); err != nil {
				t.Error(err)
			}
			if err := tx.Save(ctx, r); err != nil {
				return err
			}
			before, err := tx.Previous(ctx, other)
			if err != nil || before.Approval.GetId() != "a" || before.Call.GetCall().GetParamsJson() == "" {
				t.Errorf("the previous call is %v, %v", before, err)
			}
			return nil
		})
	})
}

// Case A2. The environment variable SLUICE_REDEEMS sets the number of rounds.
func TestClaim_OneOf200ConcurrentClaimsSucceeds(t *testing.T) {
	rounds := 3
	if text, ok := os.LookupEnv("SLUICE_REDEEMS"); ok {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("SLUICE_REDEEMS=%q must be a number of rounds, 1 or more", text)
		}
	}
	forEachStore(t, func(t *testing.T, at storeKind) {
		replicas := []*store.Store{at.open(t)}
		for at.replicas && len(replicas) < 4 {
			replicas = append(replicas, at.open(t))
		}
		const callers = 200
		for round := range rounds {
			id := fmt.Sprintf("a%d", round)
			openApproval(t, replicas[0], openRequest(id))
			approve(t, replicas[0], id, "ben")
			var granted, refused atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					var got *lifecycle.Refusal
					err := sqlstore.ErrUnavailable
					for errors.Is(err, sqlstore.ErrUnavailable) { // on a busy machine, a connection may not open in time
						err = replicas[i%len(replicas)].Do(t.Context(), func(ctx context.Context, tx *store.Tx) error {
							r, err := tx.Get(ctx, "acme", id)
							if err != nil {
								return err
							}
							if got, err = r.Claim(claimRequest(fmt.Sprintf("c%d", i), 1), tx.Now); err != nil || got != nil {
								return err
							}
							return tx.Save(ctx, r)
						})
					}
					switch {
					case err != nil:
						t.Error(err)
					case got == nil:
						granted.Add(1)
					default:
						refused.Add(1)
					}
				})
			}
			wg.Wait()
			if granted.Load() != 1 || refused.Load() != callers-1 {
				t.Fatalf("round %d: %d have the call, %d were refused", round, granted.Load(), refused.Load())
			}
		}
		t.Logf("%d rounds on %d replicas: of %d callers one had the call in each", rounds, len(replicas), callers)
	})
}

func TestPrune_DeletesEndedApprovals(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		openApproval(t, s, openRequest("pending"))
		openApproval(t, s, openRequest("ended"))
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			r, err := tx.Get(ctx, "acme", "ended")
			if err != nil {
				return err
			}
			return errors.Join(r.Cancel("op", "x", tx.Now), tx.Save(ctx, r))
		})
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			if n, err := tx.Prune(ctx, tx.Now.Add(-time.Hour)); n != 0 || err != nil {
				t.Errorf("deleted %d, %v", n, err)
			}
			return nil
		})
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			if n, err := tx.Prune(ctx, tx.Now.Add(time.Hour)); n != 1 || err != nil {
				t.Errorf("deleted %d, %v", n, err)
			}
			if history, err := tx.History(ctx, "ended", 10); len(history) != 0 || err != nil {
				t.Errorf("the history of a deleted approval is %v, %v", history, err)
			}
			_, err := tx.Get(ctx, "acme", "pending")
			return err
		})
	})
}

func TestMoved_IsClosedByAMove(t *testing.T) {
	forEachStore(t, func(t *testing.T, at storeKind) {
		s := at.open(t)
		wait := s.Moved()
		do(t, s, func(ctx context.Context, tx *store.Tx) error { _, err := tx.NewestMove(ctx); return err })
		select {
		case <-wait:
			t.Error("reading closed the channel")
		default:
		}
		openApproval(t, s, openRequest("a"))
		select {
		case <-wait:
		default:
			t.Error("the channel was not closed")
		}
	})
}
