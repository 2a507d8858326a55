package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

func newTestService(t testing.TB) *Service {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nname: one\nserver: demo\ntools:\n  read: {action: allow}\n"+
		"  pay: {action: require_approval, grant: {calls: 2, within: 1h, critical: true, where: 'args.sum == 1'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	signer, _, err := signeddecision.NewLocalPair()
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), Config{
		Paths: []string{file}, SessionCap: 1, People: peopleOfRecords(rpctest.Records()), Decide: time.Minute, Execute: time.Minute, TestsWithin: time.Minute,
		Source: "sqlite", Data: t.TempDir(), Servers: map[string]catalog.Settings{"demo": {Mode: catalog.Off}},
	},
		Deps{Tokens: new(authn.Tokens), Signer: signer, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func as(ctx context.Context, name string) context.Context {
	return authn.WithCaller(ctx, &authn.Caller{
		Role: authv1.Role_ROLE_GATEWAY, Principal: &identityv1.Principal{Tenant: "default", Subject: name},
	})
}

func longList() *policyv1.FilterToolsRequest {
	req := &policyv1.FilterToolsRequest{Server: "demo"}
	for i := range 10_000 {
		req.Tools = append(req.Tools, &policyv1.ToolRef{Name: fmt.Sprintf("tool-%0100d", i)})
	}
	return req
}

// Case X1. All slots for lists are in use. Requests to filter a list wait, but calls are still evaluated.
func TestDecideCall_DoesNotWaitForLists(t *testing.T) {
	t.Parallel()
	s := newTestService(t)
	synctest.Test(t, func(t *testing.T) {
		done := takeAll(t, s.listSlots)
		ctx, cancel := context.WithTimeout(as(t.Context(), "ana"), time.Second)
		defer cancel()
		if _, err := s.FilterTools(ctx, longList()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a list while all slots are taken: %v", err)
		}
		got, err := s.DecideCall(as(t.Context(), "ana"), &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "demo", Name: "read"}})
		if err != nil || got.GetDecision().GetEffect() != policyv1.Effect_EFFECT_ALLOW {
			t.Errorf("a call while all slots are taken: %v, %v", got, err)
		}
		done()
		if _, err := s.FilterTools(as(t.Context(), "ana"), longList()); err != nil {
			t.Errorf("a list after the slots were released: %v", err)
		}
	})
}

// Case X1. All slots for calls with conditions are in use. Such calls wait, but other calls are still evaluated.
func TestDecideCall_DoesNotWaitForCallsWithConditions(t *testing.T) {
	t.Parallel()
	s := newTestService(t)
	synctest.Test(t, func(t *testing.T) {
		done := takeAll(t, s.conditionSlots)
		ctx, cancel := context.WithTimeout(as(t.Context(), "ana"), time.Second)
		defer cancel()
		pay := &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "demo", Name: "pay", ParamsJson: `{"arguments":{"sum":1}}`}}
		if _, err := s.DecideCall(ctx, pay); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call with a condition while all slots are taken: %v", err)
		}
		got, err := s.DecideCall(as(t.Context(), "ana"), &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "demo", Name: "read"}})
		if err != nil || got.GetDecision().GetEffect() != policyv1.Effect_EFFECT_ALLOW {
			t.Errorf("another call while all slots are taken: %v, %v", got, err)
		}
		done()
		if got, err := s.DecideCall(as(t.Context(), "ana"), pay); err != nil || got.GetDecision().GetApproval().GetGrant() == nil {
			t.Errorf("a call with a condition after the slots were released: %v, %v", got, err)
		}
	})
}

// takeAll acquires every slot, on behalf of many owners.
func takeAll(t *testing.T, turns *fairqueue.Queue[owner]) (done func()) {
	t.Helper()
	var taken []func()
	for i := 0; ; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		end, err := turns.Acquire(ctx, owner{"default", fmt.Sprint("flood-", i)})
		cancel()
		if err != nil {
			return func() {
				for _, end := range taken {
					end()
				}
			}
		}
		taken = append(taken, end)
	}
}

// cancelledAfter is a context that is cancelled after its method Err has been called as many times as the field left
// says.
type cancelledAfter struct {
	context.Context
	left int
}

func (c *cancelledAfter) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// Case X1. Filtering a list stops when the context is cancelled.
func TestFilterTools_StopsWhenTheCallerIsGone(t *testing.T) {
	t.Parallel()
	s := newTestService(t)
	ctx := &cancelledAfter{as(t.Context(), "ana"), 5_000}
	if _, err := s.FilterTools(ctx, longList()); !errors.Is(err, context.Canceled) {
		t.Errorf("a list whose caller is gone: %v", err)
	}
	if _, err := s.FilterTools(as(t.Context(), "ana"), longList()); err != nil {
		t.Errorf("the next list: %v", err)
	}
}

// BenchmarkDecideCall_WhileListsAreDecided measures the evaluation of one principal's calls. Meanwhile, another
// principal repeatedly sends a hundred concurrent requests, each of which filters a list of 10,000 tools.
func BenchmarkDecideCall_WhileListsAreDecided(b *testing.B) {
	s := newTestService(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for range 100 {
		go func() {
			for req := longList(); ctx.Err() == nil; {
				_, _ = s.FilterTools(as(ctx, "flood"), req)
			}
		}()
	}
	call := &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "demo", Name: "read"}}
	var took []time.Duration
	for b.Loop() {
		time.Sleep(time.Millisecond) // so that calls do not arrive all at once
		begin, done := time.Now(), make(chan error)
		go func() { // a server handles each request in a goroutine
			_, err := s.DecideCall(as(ctx, "ana"), call)
			done <- err
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// peopleOfRecords returns the holders of tokens.
func peopleOfRecords(records []*identityv1.TokenRecord) People {
	var out People
	for _, r := range records {
		out.Tokens = append(out.Tokens, r.GetToken())
	}
	return out
}
