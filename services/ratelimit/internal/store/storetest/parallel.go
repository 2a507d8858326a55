package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

var parallelCases = []testCase{
	{name: "R1: of 1,000 parallel calls exactly the limit passes", run: func(f *fixture) {
		for repeat := range 20 {
			l := limitOf(fmt.Sprint("b", repeat), 10, long)
			var granted atomic.Int64
			f.concurrently(1000, func(i int) {
				result, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: fmt.Sprint(repeat, "/", i), Limits: []store.Limit{l}, Lifetime: time.Minute})
				if err != nil {
					f.Errorf("Reserve: %v", err)
				}
				if result.Granted {
					granted.Add(1)
				}
			})
			if granted.Load() != 10 {
				f.Fatalf("repeat %d: %d passed, want 10", repeat, granted.Load())
			}
			f.wantRemaining(0, l)
		}
	}},
	{name: "parallel repeats of one key get one reservation, and take its units once", run: func(f *fixture) {
		a, b := limitOf("a", 100, long), limitOf("b", 1, long)
		var ids sync.Map
		f.concurrently(200, func(int) {
			result, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: "k", Limits: []store.Limit{a, b}, Lifetime: time.Minute})
			if err != nil || !result.Granted {
				f.Errorf("Reserve: %+v %v", result, err)
			}
			ids.Store(result.Reservation.ID, true)
		})
		var n int
		ids.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			f.Errorf("%d reservations, want 1", n)
		}
		f.wantRemaining(99, a)
		f.wantRemaining(0, b)
	}},
	{name: "one of several parallel settles has an effect, and returns the units once", run: func(f *fixture) {
		l := limitOf("b", 10, long)
		f.granted(withCost(3, l))
		held := f.granted(withCost(5, l))
		var settled atomic.Int64
		f.concurrently(100, func(int) {
			ok, err := f.store.Settle(f.Context(), held.Reservation.ID, store.NeverSent)
			if err != nil {
				f.Errorf("Settle: %v", err)
			}
			if ok {
				settled.Add(1)
			}
		})
		if settled.Load() != 1 {
			f.Errorf("%d settled it, want 1", settled.Load())
		}
		f.wantRemaining(7, l)
	}},
	{name: "parallel reservations of overlapping limits in any order end, each with all limits or none", run: overlapping},
}

// concurrently calls the given function n times in parallel and waits for all calls.
func (f *fixture) concurrently(n int, do func(i int)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			do(i)
		})
	}
	close(start)
	all.Wait()
}

// overlapping runs concurrent callers that reserve units of random limits in random order and return the units of some
// reservations. It fails the test unless the remaining units match the grants.
func overlapping(f *fixture) {
	const buckets, callers, calls, most = 12, 16, 250, 600
	var spent [buckets]atomic.Int64
	f.concurrently(callers, func(caller int) {
		random := rand.New(rand.NewPCG(1, uint64(caller)))
		for call := range calls {
			chosen := random.Perm(buckets)[:1+random.IntN(6)]
			limits := make([]store.Limit, len(chosen))
			for i, b := range chosen {
				limits[i] = limitOf(fmt.Sprint("b", b), most, long)
			}
			key := fmt.Sprint(caller, "/", call)
			if !f.spend(key, limits, random.IntN(4) == 0) {
				continue
			}
			for _, b := range chosen {
				spent[b].Add(1)
			}
		}
	})
	for b := range spent {
		if spent[b].Load() > most {
			f.Errorf("bucket %d granted %d of %d", b, spent[b].Load(), most)
		}
		f.wantRemaining(most-spent[b].Load(), limitOf(fmt.Sprint("b", b), most, long))
	}
}

// spend reserves units of limits. If back is true, spend also returns the units. It reports whether units were taken
// and not returned.
func (f *fixture) spend(key string, limits []store.Limit, back bool) bool {
	result, err := f.store.Reserve(f.Context(), store.ReserveRequest{Key: key, Limits: limits, Lifetime: time.Minute})
	if err != nil {
		f.Errorf("Reserve: %v", err)
	}
	if !result.Granted || !back {
		return result.Granted
	}
	if settled, err := f.store.Settle(f.Context(), result.Reservation.ID, store.NeverSent); !settled || err != nil {
		f.Errorf("Settle: %t %v", settled, err)
	}
	return false
}
