package storetest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

var reserveCases = []testCase{
	{name: "a limit grants its max and no more", run: func(f *fixture) {
		l := limitOf("b", 10, long)
		for i := range int64(10) {
			result := f.granted(l)
			if result.Remaining[0] != 9-i {
				f.Errorf("grant %d leaves %d", i, result.Remaining[0])
			}
		}
		result := f.refused(l)
		if result.Remaining[0] != 0 || result.Never || result.RetryAfter > long+time.Millisecond {
			f.Errorf("refused with %+v", result)
		}
	}},
	{name: "all or nothing: one full limit leaves the others as they were", run: func(f *fixture) {
		a, b, c := limitOf("a", 10, long), limitOf("b", 1, long), limitOf("c", 10, long)
		f.granted(b)
		result := f.refused(a, b, c)
		if diff := cmp.Diff([]int64{10, 0, 10}, result.Remaining); result.Limit != 1 || diff != "" {
			f.Errorf("refused by %d, remaining: -want +got\n%s", result.Limit, diff)
		}
		f.wantRemaining(10, a, c)
		f.fails("reset of a bucket that only a refusal named", f.store.Reset(f.Context(), "a"), store.ErrNotFound)
	}},
	{name: "a grant names the limit with the least left", run: func(f *fixture) {
		result := f.granted(limitOf("a", 10, long), withCost(4, limitOf("b", 9, long)), limitOf("c", 6, long))
		if diff := cmp.Diff([]int64{9, 5, 5}, result.Remaining); result.Limit != 1 || diff != "" {
			f.Errorf("tightest %d, remaining: -want +got\n%s", result.Limit, diff)
		}
	}},
	{name: "a refusal names the limit to wait for longest", run: func(f *fixture) {
		a, b, c := limitOf("a", 1, time.Minute), limitOf("b", 1, 3*time.Minute), limitOf("c", 1, 2*time.Minute)
		f.granted(a, b, c)
		result := f.refused(a, b, c)
		if result.Limit != 1 || result.RetryAfter <= 2*time.Minute || result.RetryAfter > 3*time.Minute+time.Millisecond {
			f.Errorf("refused with %+v", result)
		}
	}},
	{name: "a cost above the max never fits, and is reported before any wait", run: func(f *fixture) {
		a, b, c := limitOf("a", 1, long), withCost(4, limitOf("b", 3, time.Second)), withCost(9, limitOf("c", 3, long))
		f.granted(a)
		result := f.refused(a, b, c)
		if !result.Never || result.Limit != 1 {
			f.Errorf("refused with %+v", result)
		}
		if result := f.refused(limitOf("zero", 0, long)); !result.Never {
			f.Errorf("a max of zero: %+v", result)
		}
	}},
	{name: "a cost above one takes all of its units", run: func(f *fixture) {
		l := limitOf("b", 10, long)
		f.granted(withCost(7, l))
		if result := f.refused(withCost(4, l)); result.Remaining[0] != 3 {
			f.Errorf("refused with %+v", result)
		}
		f.granted(withCost(3, l))
		f.wantRemaining(0, l)
	}},
	{name: "a large max is not exceeded either", run: func(f *fixture) {
		l := limitOf("b", 1_000_000, long)
		f.granted(withCost(999_999, l))
		f.granted(l)
		f.refused(l)
	}},
	{name: "the greatest numbers do not overflow", run: func(f *fixture) {
		l := limitOf("b", 1<<63-1, 366*24*time.Hour)
		f.granted(withCost(1<<63-2, l))
		f.refused(withCost(1<<63-1, l))
		f.granted(l)
		f.refused(l)
	}},
	{name: "buckets with any names are distinct", run: func(f *fixture) {
		for _, name := range []string{"a", "A", "a:b", "a\x00", "{a}", "a ", "ä", strings.Repeat("x", 128), strings.Repeat("x", 127) + "y"} {
			l := limitOf(name, 1, long)
			f.granted(l)
			f.refused(l)
		}
	}},
	{name: "64 limits at once", run: func(f *fixture) {
		limits := make([]store.Limit, store.MaxLimits)
		for i := range limits {
			limits[i] = limitOf(fmt.Sprint("b", i), 2, long)
		}
		f.granted(limits...)
		f.wantRemaining(1, limits...)
		f.granted(limits[40])
		if result := f.refused(limits...); result.Limit != 40 {
			f.Errorf("refused by limit %d, want 40", result.Limit)
		}
		f.wantRemaining(1, limits[:40]...)
	}},
	{name: "I3: the cap of a principal applies to a thousand sessions", run: func(f *fixture) {
		var granted int
		for i := range 1000 {
			for range 11 {
				result := f.reserve(limitOf(fmt.Sprint("session", i), 10, long), limitOf("principal", 30, long))
				if !result.Granted {
					break
				}
				granted++
			}
		}
		if granted != 30 {
			f.Errorf("%d calls passed, want 30", granted)
		}
	}},
	{name: "R3: an invalid reservation is refused and takes nothing", run: invalid},
	{name: "a context that has ended takes nothing", run: func(f *fixture) {
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		l := limitOf("b", 1, long)
		_, err := f.store.Reserve(ctx, store.ReserveRequest{Key: "k", Limits: []store.Limit{l}, Lifetime: time.Minute})
		f.fails("Reserve", err, context.Canceled)
		f.wantRemaining(1, l)
		result := f.granted(l)
		_, err = f.store.Settle(ctx, result.Reservation.ID, store.NeverSent)
		f.fails("Settle", err, context.Canceled)
		f.fails("Reset", f.store.Reset(ctx, "b"), context.Canceled)
		f.wantRemaining(0, l)
		_, err = f.store.Renew(ctx, result.Reservation.ID, time.Minute)
		f.fails("Renew", err, context.Canceled)
		_, err = f.store.Peek(ctx, []store.Limit{l})
		f.fails("Peek", err, context.Canceled)
	}},
	{name: "a peek takes nothing and may name a bucket twice", run: func(f *fixture) {
		l := limitOf("b", 3, long)
		f.wantRemaining(3, l, withCost(0, l), withCost(99, l))
		f.granted(l)
		f.wantRemaining(2, l, l)
		for range 2 {
			f.granted(l)
		}
		f.wantRemaining(0, l)
	}},
	{name: "a reset empties its bucket and no other", run: func(f *fixture) {
		a, b := limitOf("a", 1, long), limitOf("b", 1, long)
		f.granted(a, b)
		if err := f.store.Reset(f.Context(), "a"); err != nil {
			f.Fatalf("Reset: %v", err)
		}
		f.wantRemaining(1, a)
		f.wantRemaining(0, b)
		f.fails("a second reset", f.store.Reset(f.Context(), "a"), store.ErrNotFound)
		f.granted(a)
		f.refused(a)
	}},
}

// invalid sends invalid requests. Each request also contains one valid limit.
func invalid(f *fixture) {
	good := limitOf("good", 1, long)
	many := make([]store.Limit, store.MaxLimits+1)
	for i := range many {
		many[i] = limitOf(fmt.Sprint("b", i), 1, long)
	}
	tests := []struct {
		name string
		r    store.ReserveRequest
	}{
		{"no key", store.ReserveRequest{Limits: []store.Limit{good}, Lifetime: time.Minute}},
		{"no limits", store.ReserveRequest{Key: "k", Lifetime: time.Minute}},
		{"too many limits", store.ReserveRequest{Key: "k", Limits: many, Lifetime: time.Minute}},
		{"no reservation", store.ReserveRequest{Key: "k", Limits: []store.Limit{good}}},
		{"a negative reservation", store.ReserveRequest{Key: "k", Limits: []store.Limit{good}, Lifetime: -1}},
	}
	for name, bad := range map[string]store.Limit{
		"no bucket":         limitOf("", 1, long),
		"the same bucket":   good,
		"a negative max":    limitOf("bad", -1, long),
		"a cost of zero":    withCost(0, limitOf("bad", 1, long)),
		"a negative cost":   withCost(-1_000_000, limitOf("bad", 1, long)),
		"no window":         limitOf("bad", 1, 0),
		"a negative window": limitOf("bad", 1, -time.Second),
		"a window too long": limitOf("bad", 1, 366*24*time.Hour+1),
		"the zero limit":    {},
	} {
		tests = append(tests, struct {
			name string
			r    store.ReserveRequest
		}{name, store.ReserveRequest{Key: "k", Limits: []store.Limit{good, bad}, Lifetime: time.Minute}})
	}
	for _, tt := range tests {
		result, err := f.store.Reserve(f.Context(), tt.r)
		f.fails(tt.name, err, store.ErrInvalid)
		if result.Granted {
			f.Errorf("%s: granted", tt.name)
		}
		f.wantRemaining(1, good)
	}
	f.reserveAs("k", good) // the store has not stored the failed requests
	_, err := f.store.Peek(f.Context(), nil)
	f.fails("a peek at nothing", err, store.ErrInvalid)
	_, err = f.store.Peek(f.Context(), many)
	f.fails("a peek at too much", err, store.ErrInvalid)
}
