package storetest

import (
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

// limitChangeCases test limits that change while their buckets are in use.
var limitChangeCases = []testCase{
	{name: "a raised max keeps the history", run: func(f *fixture) {
		for range 10 {
			f.granted(limitOf("b", 10, long))
		}
		for range 5 {
			f.granted(limitOf("b", 15, long))
		}
		f.refused(limitOf("b", 15, long))
	}},
	{name: "a lowered max keeps the history, and no units are left", run: func(f *fixture) {
		for range 10 {
			f.granted(limitOf("b", 15, long))
		}
		f.wantRemaining(0, limitOf("b", 4, long))
		f.refused(limitOf("b", 4, long))
		f.wantRemaining(5, limitOf("b", 15, long))
	}},
	{name: "after a lowered max, exactly enough units must leave the window", exact: true, run: func(f *fixture) {
		for range 10 {
			f.granted(limitOf("b", 10, time.Minute))
			f.Sleep(time.Second)
		}
		// Ten units were taken at 0 to 9 s, and now it is 10 s. Seven of these units must stop counting before another unit
		// fits.
		l := limitOf("b", 4, time.Minute)
		if got, want := f.refused(l).RetryAfter, 56*time.Second+time.Millisecond; got != want {
			f.Errorf("retry after %v, want %v", got, want)
		}
		f.Sleep(56 * time.Second)
		f.refused(l)
		f.Sleep(f.Tick)
		f.granted(l)
		f.refused(l)
	}},
	{name: "at the border between exact and rounded buckets, nothing extra passes", exact: true, run: func(f *fixture) {
		var granted int64
		for _, most := range []int64{256, 300, 256, 257, 100, 1000, 256} {
			for range 200 {
				if f.reserve(limitOf("b", most, time.Minute)).Granted {
					granted++
				}
			}
			if granted > 1000 {
				f.Fatalf("%d granted in one window", granted)
			}
			f.Sleep(time.Second)
		}
		if granted < 256 {
			f.Errorf("only %d granted", granted)
		}
		f.refused(limitOf("b", 256, time.Minute))
		f.Sleep(2 * time.Minute)
		f.granted(withCost(256, limitOf("b", 256, time.Minute)))
		f.refused(limitOf("b", 256, time.Minute))
	}},
	{name: "a bucket in use keeps its window", run: func(f *fixture) {
		f.granted(limitOf("b", 2, long))
		other := limitOf("b", 2, time.Minute)
		_, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: "k", Limits: []store.Limit{limitOf("a", 1, long), other}, Lifetime: time.Minute})
		f.fails("Reserve", err, store.ErrInvalid)
		_, err = f.store.Peek(f.Context(), []store.Limit{other})
		f.fails("Peek", err, store.ErrInvalid)
		f.wantRemaining(1, limitOf("a", 1, long), limitOf("b", 2, long))
	}},
	{name: "an empty bucket is equal to no bucket", run: func(f *fixture) {
		f.granted(limitOf("b", 2, short))
		f.Sleep(short + short/2)
		f.fails("Reset", f.store.Reset(f.Context(), "b"), store.ErrNotFound)
		f.granted(limitOf("b", 2, long))
		f.wantRemaining(1, limitOf("b", 2, long))
	}},
}
