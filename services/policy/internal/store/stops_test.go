package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

func allStops(store.Stop) bool { return true }

func stopOf(operatorTenant, operator, reason string, selector engine.Selector) store.Stop {
	return store.Stop{Stop: engine.Stop{Selector: selector, Reason: reason}, OperatorTenant: operatorTenant, Operator: operator}
}

// Two processes use the same store. The second process reads the stops that the first process has stored. A process
// that opens the store later finds the stops that have ended.
func TestStops_AreStored(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		ctx := t.Context()
		if set, err := one.StopsInForce(ctx); err != nil || set.Stops != nil || set.Version != 0 {
			t.Fatalf("a new store has %+v: %v", set, err)
		}
		coder, home := engine.Selector{Agent: "coder", Tenant: "acme"}, engine.Selector{Server: "files"}
		first, existed, set, err := one.StopCalls(ctx, stopOf("acme", "ana", "it loops", coder))
		if err != nil || existed || first.Began.IsZero() || set.Version != 1 || len(set.Stops) != 1 {
			t.Fatalf("%+v, %t, %+v: %v", first, existed, set, err)
		}
		again, existed, set, err := two.StopCalls(ctx, stopOf("acme", "ben", "another reason", coder))
		if diff := cmp.Diff(first, again); diff != "" || !existed || set.Version != 1 || err != nil {
			t.Fatalf("a repeated stop: %t, version %d, %v (-first +repeated):\n%s", existed, set.Version, err, diff)
		}
		// The operators of the installation create a stop for the same calls, and another stop for all calls to the
		// server.
		for _, selector := range []engine.Selector{coder, home} {
			if _, existed, _, err := two.StopCalls(ctx, stopOf("default", "root", "x", selector)); err != nil || existed {
				t.Fatalf("%+v: %t, %v", selector, existed, err)
			}
		}
		set, err = one.StopsInForce(ctx)
		if err != nil || set.Version != 3 || len(set.Stops) != 3 || !cmp.Equal(set.Stops[0], first) {
			t.Fatalf("%+v: %v", set, err)
		}

		ended, set, err := one.ResumeCalls(ctx, store.Resume{Selector: coder, Operator: "ben", OperatorTenant: "acme"})
		if err != nil || len(ended) != 1 || ended[0].ResumedBy != "ben" || ended[0].Ended.IsZero() || set.Version != 4 || len(set.Stops) != 2 {
			t.Fatalf("%+v, %+v: %v", ended, set, err)
		}
		if none, set, err := two.ResumeCalls(ctx, store.Resume{Selector: coder, Operator: "ben", OperatorTenant: "acme"}); err != nil || none != nil || set.Version != 4 {
			t.Errorf("a repeated end: %+v, %+v: %v", none, set, err)
		}
		if both, set, err := two.ResumeCalls(ctx, store.Resume{Selector: coder, Operator: "root", AnyTenant: true}); err != nil || len(both) != 1 || len(set.Stops) != 1 {
			t.Errorf("%+v, %+v: %v", both, set, err)
		}
		history, err := open().EndedStops(ctx, allStops)
		if err != nil || len(history) != 2 || history[0].OperatorTenant != "default" {
			t.Fatalf("%+v: %v", history, err)
		}
		if diff := cmp.Diff(ended[0], history[1]); diff != "" {
			t.Errorf("(-ended +stored):\n%s", diff)
		}
		if own, err := one.EndedStops(ctx, func(s store.Stop) bool { return s.OperatorTenant == "acme" }); err != nil || len(own) != 1 {
			t.Errorf("%+v: %v", own, err)
		}
	})
}

// Two processes repeatedly stop and resume the same calls at the same time. At most one stop is in force at any time.
// Every stop that began is stored as ended.
func TestStops_ConcurrentReplicasAgree(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		const each = 10
		selector := engine.Selector{Agent: "a"}
		began, done := make(chan int, 4), make(chan error, 4)
		for i, s := range []*store.Store{open(), open()} {
			go func() {
				own := 0
				var all error
				for range each {
					_, existed, set, err := s.StopCalls(t.Context(), stopOf("default", fmt.Sprint(i), "x", selector))
					if err == nil && len(set.Stops) != 1 {
						err = fmt.Errorf("%d stops are in force", len(set.Stops))
					}
					if !existed {
						own++
					}
					_, _, resumed := s.ResumeCalls(t.Context(), store.Resume{Selector: selector, AnyTenant: true})
					all = errors.Join(all, err, resumed)
				}
				began <- own
				done <- all
			}()
		}
		total := <-began + <-began
		if err := errors.Join(<-done, <-done); err != nil {
			t.Fatal(err)
		}
		s := open()
		ended, err := s.EndedStops(t.Context(), allStops)
		if set, inForce := s.StopsInForce(t.Context()); inForce != nil || err != nil || len(set.Stops) != 0 || len(ended) != total {
			t.Errorf("%d stops began, %d have ended, in force: %+v; %v, %v", total, len(ended), set, err, inForce)
		}
	})
}

func TestStops_AreBounded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		selector := func(n int) engine.Selector { return engine.Selector{Agent: fmt.Sprint(n)} }
		for n := range store.MaxStops {
			if _, _, _, err := s.StopCalls(t.Context(), stopOf("acme", "ana", "x", selector(n))); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, _, err := s.StopCalls(t.Context(), stopOf("acme", "ana", "x", selector(-1))); !errors.Is(err, store.ErrStopsFull) {
			t.Errorf("one stop too many: %v", err)
		}
		if _, existed, _, err := s.StopCalls(t.Context(), stopOf("acme", "ana", "x", selector(0))); err != nil || !existed {
			t.Errorf("a stop that is in force: %t, %v", existed, err)
		}
		if _, existed, _, err := s.StopCalls(t.Context(), stopOf("default", "root", "x", engine.Selector{})); err != nil || existed {
			t.Errorf("a stop of another tenant: %t, %v", existed, err)
		}
	})
}

func TestEndedStops_OldestAreDeleted(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for n := range 1003 {
			if _, _, _, err := s.StopCalls(t.Context(), stopOf("acme", "ana", fmt.Sprint(n), engine.Selector{Agent: "a"})); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.ResumeCalls(t.Context(), store.Resume{Selector: engine.Selector{Agent: "a"}, OperatorTenant: "acme"}); err != nil {
				t.Fatal(err)
			}
		}
		ended, err := s.EndedStops(t.Context(), allStops)
		if err != nil || len(ended) != 1000 || ended[0].Reason != "1002" || ended[999].Reason != "3" {
			t.Errorf("%d stops: %v", len(ended), err)
		}
	})
}

func TestStopSet_EngineStopsTheSameCalls(t *testing.T) {
	t.Parallel()
	set := store.StopSet{Stops: []store.Stop{stopOf("acme", "ana", "x", engine.Selector{Agent: "a", Tenant: "acme"})}}
	want := engine.NewStops([]engine.Stop{{Selector: engine.Selector{Agent: "a", Tenant: "acme"}, Reason: "x"}})
	if diff := cmp.Diff(want, set.Engine(), cmpopts.EquateComparable(), cmp.AllowUnexported(engine.Stops{})); diff != "" {
		t.Error(diff)
	}
}
