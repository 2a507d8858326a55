package storetest

import (
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/store"
)

var waitCases = []testCase{
	{name: "after its retry time, a reservation fits", run: func(f *fixture) {
		for _, most := range []int64{3, 256, 257, 5000} {
			a, b := limitOf("a", most, short), limitOf("b", most, short/2)
			for range 3 {
				result := f.reserve(withCost(most, a), withCost(most, b))
				if !result.Granted {
					f.Sleep(result.RetryAfter)
					f.granted(withCost(most, a), withCost(most, b))
				}
			}
			f.Sleep(2 * short)
		}
	}},
	{name: "a millisecond before its retry time, a reservation does not fit", exact: true, run: func(f *fixture) {
		l := limitOf("b", 2, time.Minute)
		f.granted(l)
		f.Sleep(100*time.Millisecond + 300*time.Microsecond)
		f.granted(l)
		for range 5 {
			result := f.refused(l)
			f.Sleep(result.RetryAfter - time.Millisecond)
			f.refused(l)
			f.Sleep(time.Millisecond)
			f.granted(l)
		}
	}},
	{name: "a large max reports a correct wait, too", exact: true, run: func(f *fixture) {
		l := limitOf("b", 1000, time.Minute)
		f.Sleep(1234567 * time.Nanosecond)
		for i := range int64(20) {
			f.granted(withCost(50, l))
			f.Sleep(time.Duration(i) * 100 * time.Millisecond)
		}
		for range 5 {
			result := f.refused(withCost(500, l))
			f.Sleep(result.RetryAfter - time.Millisecond)
			f.refused(withCost(500, l))
			f.Sleep(time.Millisecond)
			f.granted(withCost(500, l))
		}
	}},
	{name: "the window is closed: exactly one window later is too early, and a tick more is not", exact: true, run: func(f *fixture) {
		l := limitOf("b", 1, time.Minute)
		f.granted(l)
		f.Sleep(time.Minute)
		if result := f.refused(l); result.RetryAfter != time.Millisecond {
			f.Errorf("retry after %v, want 1ms", result.RetryAfter)
		}
		f.Sleep(f.Tick)
		f.granted(l)
	}},
	{name: "the window slides: no burst across an edge", exact: true, run: func(f *fixture) {
		l := limitOf("b", 10, time.Minute)
		f.Sleep(59 * time.Second)
		for range 10 {
			f.granted(l)
		}
		f.Sleep(2 * time.Second) // the clock enters its next minute
		f.refused(l)
		f.Sleep(57 * time.Second)
		f.refused(l)
		f.Sleep(time.Second + f.Tick)
		for range 10 {
			f.granted(l)
		}
		f.refused(l)
	}},
	{name: "10 calls per 60 seconds reset by themselves", exact: true, run: func(f *fixture) {
		l := limitOf("b", 10, 60*time.Second)
		for range 5 {
			for range 10 {
				f.granted(l)
			}
			f.refused(l)
			f.Sleep(60*time.Second + f.Tick)
			f.wantRemaining(10, l)
		}
	}},
	{name: "refusals do not push the retry time away", exact: true, run: func(f *fixture) {
		l := limitOf("b", 1, time.Minute)
		f.granted(l)
		for i := range 60 {
			if want, got := time.Minute+time.Millisecond-time.Duration(i)*time.Second, f.refused(l).RetryAfter; got != want {
				f.Fatalf("retry after %v, want %v", got, want)
			}
			f.Sleep(time.Second)
		}
		f.Sleep(f.Tick)
		f.granted(l)
	}},
	{name: "the longest of several waits is enough for all", exact: true, run: func(f *fixture) {
		limits := []store.Limit{limitOf("a", 3, time.Second), limitOf("b", 5, 10*time.Second), limitOf("c", 300, 20*time.Second)}
		var waited int
		for range 60 {
			result := f.reserve(limits...)
			if !result.Granted {
				waited++
				f.Sleep(result.RetryAfter)
				f.granted(limits...)
			}
		}
		if waited == 0 {
			f.Error("never refused")
		}
	}},
}
