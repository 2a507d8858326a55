package store_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store/storetest"
)

// largeBounds is a capacity that no test uses up.
var largeBounds = store.Bounds{Buckets: 1_000_000, Reservations: 1_000_000}

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{
		New:    func(t *testing.T) store.Store { return newMemory(t, largeBounds) },
		Within: synctest.Test,
		Exact:  true,
		Tick:   time.Nanosecond,
	})
}

func newMemory(t *testing.T, most store.Bounds) *store.Memory {
	t.Helper()
	m, err := store.NewMemory(most)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// limitPerMinute returns a limit of n units per minute with a cost of one unit.
func limitPerMinute(bucket string, n int64) store.Limit {
	return store.Limit{Bucket: bucket, Max: n, Window: time.Minute, Cost: 1}
}

// reserve reserves units of limits for ten minutes, with the given key. The key is also the name of the owner.
func reserve(t *testing.T, m *store.Memory, key string, limits ...store.Limit) (store.Result, error) {
	t.Helper()
	return reserveFor(t, m, key, key, limits...)
}

func reserveFor(t *testing.T, m *store.Memory, owner, key string, limits ...store.Limit) (store.Result, error) {
	t.Helper()
	return m.Reserve(t.Context(), store.ReserveRequest{Owner: owner, Key: key, Limits: limits, Lifetime: 10 * time.Minute})
}

// mustReserve tries to reserve units of limits. It fails the test unless the units are granted (if the parameter want
// is true) or refused (if it is false).
func mustReserve(t *testing.T, m *store.Memory, want bool, key string, limits ...store.Limit) store.Result {
	t.Helper()
	result, err := reserve(t, m, key, limits...)
	if err != nil {
		t.Fatalf("Reserve %s: %v", key, err)
	}
	if result.Granted != want {
		t.Fatalf("Reserve %s: granted %t, want %t", key, result.Granted, want)
	}
	return result
}

func TestReserve_AdmitsNothingExtraWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	l := limitPerMinute("b", 10)
	fill := func(t *testing.T, m *store.Memory, label string) (granted int) {
		t.Helper()
		for i := range 20 {
			result, err := reserve(t, m, fmt.Sprint(label, i), l)
			if err != nil {
				t.Fatal(err)
			}
			if result.Granted {
				granted++
			}
		}
		return granted
	}
	tests := []struct {
		name  string
		jumps []time.Duration
		want  int // the number of calls that are granted after the jumps
	}{
		{"back by a little", []time.Duration{-time.Second}, 0},
		{"back before the store was made", []time.Duration{-1000 * time.Hour}, 0},
		{"back and less far forth", []time.Duration{-time.Hour, 30 * time.Minute}, 0},
		{"back and as far forth", []time.Duration{-time.Hour, time.Hour}, 0},
		{"back, and forth to the edge of the window", []time.Duration{-time.Hour, time.Hour + time.Minute}, 0},
		{"forth by less than a window", []time.Duration{59 * time.Second}, 0},
		{"forth by more than a window", []time.Duration{2 * time.Minute}, 10},
		{"forth by more than a window, and back again", []time.Duration{2 * time.Minute, -2 * time.Minute}, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(t, largeBounds)
				time.Sleep(time.Hour)
				if got := fill(t, m, "first"); got != 10 {
					t.Fatalf("%d pass, want 10", got)
				}
				for _, jump := range tt.jumps {
					m.Jump(jump)
					if _, err := m.Peek(t.Context(), []store.Limit{l}); err != nil {
						t.Fatal(err)
					}
				}
				if got := fill(t, m, "then"); got != tt.want {
					t.Errorf("%d pass after the jumps, want %d", got, tt.want)
				}
				if got := fill(t, m, "again"); got != 0 {
					t.Errorf("%d pass once more, want 0", got)
				}
			})
		})
	}
}

// TestReserve_AdmitsNothingExtraWhenTheClockJumpsBackAfterEviction checks that a unit that is reserved after the
// clock has jumped back is treated as taken at the latest time that the store has seen, even if the bucket was evicted
// before the jump.
func TestReserve_AdmitsNothingExtraWhenTheClockJumpsBackAfterEviction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, largeBounds)
		l := limitPerMinute("b", 1)
		mustReserve(t, m, true, "1", l)
		time.Sleep(time.Minute + 1)
		if err := m.Reset(t.Context(), "b"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("an idle bucket: %v", err)
		}
		wantSize(t, m, 0, 1)
		m.Jump(-time.Minute)
		mustReserve(t, m, true, "2", l)
		time.Sleep(time.Minute + 1) // on the clock, one minute after the first call
		mustReserve(t, m, false, "3", l)
		time.Sleep(time.Minute)
		mustReserve(t, m, true, "4", l)
	})
}

func TestReserve_ReservationTimesUseTheWallClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t, largeBounds)
		time.Sleep(time.Hour)
		now := time.Now()
		reservation := mustReserve(t, m, true, "k", limitPerMinute("b", 1)).Reservation
		if !reservation.Granted.Equal(now) || !reservation.Expires.Equal(now.Add(10*time.Minute)) {
			t.Errorf("from %v to %v, want %v and ten minutes", reservation.Granted, reservation.Expires, now)
		}
		time.Sleep(time.Minute)
		expires, err := m.Renew(t.Context(), reservation.ID, time.Hour)
		if want := now.Add(61 * time.Minute); err != nil || !expires.Equal(want) {
			t.Errorf("renewed until %v (%v), want %v", expires, err, want)
		}
	})
}

func TestReserve_ReservationEndsAtItsExpiry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		after time.Duration
		lives bool
	}{
		"a nanosecond before": {10*time.Minute - 1, true},
		"at it":               {10 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(t, largeBounds)
				id := mustReserve(t, m, true, "k", limitPerMinute("b", 1)).Reservation.ID
				time.Sleep(test.after)
				if settled, err := m.Settle(t.Context(), id, store.Sent); settled != test.lives || err != nil {
					t.Errorf("settled %t, %v", settled, err)
				}
			})
		})
	}
}

func TestSettle_IgnoresReservationsOfAnotherStore(t *testing.T) {
	t.Parallel()
	a, b := newMemory(t, largeBounds), newMemory(t, largeBounds)
	for i := range 200 {
		mustReserve(t, b, true, fmt.Sprint(i), limitPerMinute("b", 1000))
	}
	for i := range 200 {
		result := mustReserve(t, a, true, fmt.Sprint(i), limitPerMinute("b", 1000))
		if settled, err := b.Settle(t.Context(), result.Reservation.ID, store.NeverSent); settled || err != nil {
			t.Fatalf("settled %t, %v", settled, err)
		}
	}
}
