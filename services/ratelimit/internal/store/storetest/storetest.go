// Package storetest tests the behavior that every [store.Store] must have.
package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// Harness describes the store to test.
type Harness struct {
	// New returns an empty store for one test, with a capacity of a million buckets and a million reservations. New
	// registers its cleanup with t.Cleanup.
	New func(t *testing.T) store.Store
	// Within runs one test in the environment that the store's clock needs, for example [synctest.Test]. If Within is nil,
	// the test is run directly.
	Within func(t *testing.T, test func(*testing.T))
	// Sleep waits until d has passed on the store's clock. The default is time.Sleep.
	Sleep func(d time.Duration)
	// Exact is true if the store's clock moves only in Sleep, and exactly by d. If Exact is false, tests that depend on
	// exact times are skipped.
	Exact bool
	// Tick is the resolution of the store's clock, between 1 ns and 1 ms.
	Tick time.Duration
}

type fixture struct {
	Harness
	*testing.T
	store store.Store
	calls int
}

// Run runs all tests of the package with a store.
func Run(t *testing.T, h Harness) {
	if h.Within == nil {
		h.Within = func(t *testing.T, test func(*testing.T)) { test(t) }
	}
	if h.Sleep == nil {
		h.Sleep = time.Sleep
	}
	for _, group := range [][]testCase{reserveCases, waitCases, reservationCases, limitChangeCases, parallelCases, modelCases, linearCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) {
				if c.exact && !h.Exact {
					t.Skip("needs exact times")
				}
				h.Within(t, func(t *testing.T) {
					c.run(&fixture{Harness: h, T: t, store: h.New(t)})
				})
			})
		}
	}
}

// testCase tests one property of the interface.
type testCase struct {
	name  string
	exact bool // needs Harness.Exact
	run   func(f *fixture)
}

const (
	// long is the length of a window that does not end during a test.
	long = time.Hour
	// short is the length of a window that ends soon enough for a test to wait for its end.
	short = 500 * time.Millisecond
)

func limitOf(bucket string, maxUnits int64, window time.Duration) store.Limit {
	return store.Limit{Bucket: bucket, Max: maxUnits, Window: window, Cost: 1}
}

func withCost(cost int64, l store.Limit) store.Limit {
	l.Cost = cost
	return l
}

func (f *fixture) reserve(limits ...store.Limit) store.Result {
	f.Helper()
	f.calls++
	return f.reserveAs(fmt.Sprintf("call-%d", f.calls), limits...)
}

func (f *fixture) reserveAs(key string, limits ...store.Limit) store.Result {
	f.Helper()
	result, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: key, Limits: limits, Lifetime: time.Minute})
	if err != nil {
		f.Fatalf("Reserve %s: %v", key, err)
	}
	f.check(result, len(limits))
	return result
}

func (f *fixture) check(a store.Result, limits int) {
	f.Helper()
	if len(a.Remaining) != limits || a.Limit < 0 || a.Limit >= limits {
		f.Fatalf("a result about %d limits names %d and has %d remaining", limits, a.Limit, len(a.Remaining))
	}
	for i, left := range a.Remaining {
		if left < 0 {
			f.Fatalf("limit %d has %d left", i, left)
		}
	}
	if a.Granted {
		if a.Never || a.RetryAfter != 0 || a.Reservation.ID == "" || len(a.Reservation.ID) > 128 || !a.Reservation.Expires.After(a.Reservation.Granted) {
			f.Fatalf("not a grant: %+v", a)
		}
		return
	}
	if a.Reservation != (store.Reservation{}) || a.RetryAfter%time.Millisecond != 0 || a.Never != (a.RetryAfter == 0) {
		f.Fatalf("not a refusal: %+v", a)
	}
}

// granted reserves units of limits, and fails the test unless they are granted.
func (f *fixture) granted(limits ...store.Limit) store.Result {
	f.Helper()
	result := f.reserve(limits...)
	if !result.Granted {
		f.Fatalf("refused: %+v", result)
	}
	return result
}

// refused tries to reserve units of limits, and fails the test unless they are refused.
func (f *fixture) refused(limits ...store.Limit) store.Result {
	f.Helper()
	result := f.reserve(limits...)
	if result.Granted {
		f.Fatalf("granted: %+v", result)
	}
	return result
}

// wantRemaining fails the test unless the bucket of each limit has exactly the wanted number of remaining units.
func (f *fixture) wantRemaining(want int64, limits ...store.Limit) {
	f.Helper()
	got, err := f.store.Peek(f.Context(), limits)
	if err != nil {
		f.Fatalf("Peek: %v", err)
	}
	if len(got) != len(limits) {
		f.Fatalf("Peek of %d limits has %d results", len(limits), len(got))
	}
	for i := range got {
		if got[i] != want {
			f.Errorf("bucket %q has %d left, want %d", limits[i].Bucket, got[i], want)
		}
	}
}

// settle settles a reservation, and fails the test unless Settle returns the wanted result.
func (f *fixture) settle(reservation string, outcome store.Outcome, want bool) {
	f.Helper()
	got, err := f.store.Settle(f.Context(), reservation, outcome)
	if err != nil {
		f.Fatalf("Settle: %v", err)
	}
	if got != want {
		f.Errorf("Settle of %q returns %t, want %t", reservation, got, want)
	}
}

func (f *fixture) fails(what string, err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("%s: error %v, want %v", what, err, want)
	}
}
