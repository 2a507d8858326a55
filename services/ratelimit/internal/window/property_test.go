package window_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/window"
)

// A history contains all units that were taken. It is a simple implementation of a window: it computes each result from
// all units.
type history []take

// within returns the sum of the units in the closed period that ends at now and has the given length.
func (h history) within(now, length time.Duration) int64 {
	var sum int64
	for _, k := range h {
		if k.at >= now-length && k.at <= now {
			sum += k.cost
		}
	}
	return sum
}

// most returns the maximum sum of units in any closed period of the given length. It checks only periods that end with
// a unit, because one of these periods has the maximum sum.
func (h history) most(length time.Duration) int64 {
	var most int64
	for _, k := range h {
		most = max(most, h.within(k.at, length))
	}
	return most
}

// drawStep draws a step of the clock. Most steps lead to an edge of the window or of a slot, and some steps go
// backwards.
func drawStep(t *rapid.T, length time.Duration) time.Duration {
	edges := rapid.SampledFrom([]time.Duration{0, 0, 1, length / 64, length/2 + 1, length - 1, length, length + 1, -length / 3})
	anything := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, int64(length)/8).Draw(t, "nanoseconds"))
	})
	return rapid.OneOf(edges, anything).Draw(t, "step")
}

// drawLimit draws a limit below or above MaxExact. Small limits are more frequent.
func drawLimit(t *rapid.T) int64 {
	return rapid.OneOf(
		rapid.Int64Range(0, 12),
		rapid.Int64Range(window.MaxExact-3, window.MaxExact+3),
		rapid.Int64Range(0, 1000),
	).Draw(t, "limit")
}

type run struct {
	log     window.Log
	length  time.Duration
	now     time.Duration // the time of the last call; may go back
	clock   time.Duration // the latest time of all calls
	history history
	stamps  []time.Duration // the stamps of history
	asked   []take          // all attempts, for replayed
}

// newRun draws the length of a window and the initial time.
func newRun(t *rapid.T) *run {
	length := time.Duration(rapid.SampledFrom([]int64{1, 63, 64, 1000, int64(time.Second), int64(window.MaxLength)}).Draw(t, "length"))
	start := time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "start"))
	r := &run{log: window.New(length), length: length}
	r.setNow(start)
	return r
}

func (r *run) advance(t *rapid.T) {
	r.setNow(max(0, r.now+drawStep(t, r.length)))
}

// setNow sets the current time and passes it to the log.
func (r *run) setNow(now time.Duration) {
	r.now = now
	r.clock = max(r.clock, now)
	r.log.Empty(now)
}

// take tries to take a random number of units. It returns the verdict of Check immediately before the attempt, and the
// attempt itself.
func (r *run) take(t *rapid.T, limit int64) (window.Verdict, take) {
	k := take{at: r.clock, cost: rapid.Int64Range(1, max(1, limit/3)).Draw(t, "cost"), limit: limit}
	v := r.log.Check(r.now, k.cost, limit)
	stamp, ok := r.log.Take(r.now, k.cost, limit)
	if ok != v.Fits {
		t.Fatalf("Take returns %t, Ask returned %+v", ok, v)
	}
	if ok {
		r.history = append(r.history, k)
		r.stamps = append(r.stamps, stamp)
	}
	r.asked = append(r.asked, k)
	return v, k
}

// undo undoes a random element of the history.
func (r *run) undo(t *rapid.T) {
	if len(r.history) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.history)-1).Draw(t, "undone")
	r.log.Undo(r.stamps[i], r.history[i].cost)
	r.history = append(r.history[:i:i], r.history[i+1:]...)
	r.stamps = append(r.stamps[:i:i], r.stamps[i+1:]...)
}

// replayed returns a second log. It repeats all attempts to take units on this log, but none of the undos.
func (r *run) replayed() window.Log {
	log := window.New(r.length)
	for _, k := range r.asked {
		log.Take(k.at, k.cost, k.limit)
	}
	return log
}

// neverMoreThanTheLimit checks that a constant limit is never exceeded in any period, and that a changing limit is not
// exceeded when units are taken.
func neverMoreThanTheLimit(t *rapid.T) {
	r, limit, edited := newRun(t), drawLimit(t), false
	for range rapid.IntRange(0, 80).Draw(t, "steps") {
		r.advance(t)
		switch rapid.IntRange(0, 9).Draw(t, "what") {
		case 0:
			limit, edited = drawLimit(t), true
		case 1:
			r.undo(t)
		default:
			v, k := r.take(t, limit)
			if sum := r.history.within(r.clock, r.length); v.Fits && sum > limit {
				t.Fatalf("%v was granted and makes %d in one window of %v", k, sum, r.length)
			}
		}
	}
	if got := r.history.most(r.length); !edited && got > limit {
		t.Fatalf("%d units of %d in one stretch of %v: %v", got, limit, r.length, r.history)
	}
}

func TestLog_NeverExceedsTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, neverMoreThanTheLimit)
}

func FuzzLog_NeverExceedsTheLimit(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(neverMoreThanTheLimit))
}

// TestLog_IsExactUpToMaxExact compares the log with its history, for limits up to MaxExact.
func TestLog_IsExactUpToMaxExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			r.advance(t)
			if rapid.IntRange(0, 9).Draw(t, "what") == 0 {
				r.undo(t)
				continue
			}
			limit := rapid.Int64Range(1, window.MaxExact).Draw(t, "limit")
			before := r.history.within(r.clock, r.length)
			past := r.history
			v, k := r.take(t, limit)
			if want := max(0, limit-before); v.Remaining != want {
				t.Fatalf("remaining %d, want %d", v.Remaining, want)
			}
			if want := before+k.cost <= limit; v.Fits != want {
				t.Fatalf("%v with %d taken: fits %t", k, before, v.Fits)
			}
			if v.Fits {
				continue
			}
			if past.within(r.clock+v.Wait, r.length)+k.cost > limit {
				t.Fatalf("%v does not fit after its wait of %d", k, v.Wait)
			}
			if past.within(r.clock+v.Wait-1, r.length)+k.cost <= limit {
				t.Fatalf("%v fits before its wait of %d", k, v.Wait)
			}
		}
	})
}

// TestLog_WaitIsAtMostOneSlotTooLongAboveMaxExact checks that units fit after the wait that Check returns, and do not
// fit before. It also checks that refused units would not fit into an exact window that is one slot longer.
func TestLog_WaitIsAtMostOneSlotTooLongAboveMaxExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		limit := rapid.Int64Range(window.MaxExact+1, 2000).Draw(t, "limit")
		slot := (r.length + 63) / 64
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			r.advance(t)
			past := r.history
			v, k := r.take(t, limit)
			if v.Fits {
				continue
			}
			if past.within(r.clock, r.length+slot)+k.cost <= limit {
				t.Fatalf("%v is refused though it fits into a window that is one slot longer", k)
			}
			then, before := r.replayed(), r.replayed()
			if !then.Check(r.clock+v.Wait, k.cost, limit).Fits {
				t.Fatalf("%v does not fit after its wait of %d", k, v.Wait)
			}
			if before.Check(r.clock+v.Wait-1, k.cost, limit).Fits {
				t.Fatalf("%v fits before its wait of %d", k, v.Wait)
			}
		}
	})
}

// TestLog_BehavesLikeANewLogWhenEmpty checks that a log behaves like a new log once the time that EmptyFrom returns is
// reached.
func TestLog_BehavesLikeANewLogWhenEmpty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRun(t)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			r.advance(t)
			r.take(t, drawLimit(t))
		}
		from := r.log.EmptyFrom()
		early := r.replayed()
		if len(r.history) > 0 && early.Empty(max(r.clock, from-1)) && from > r.clock {
			t.Fatalf("empty before %d", from)
		}
		if !r.log.Empty(from) {
			t.Fatalf("not empty at %d", from)
		}
		if v := r.log.Check(from, 5, 5); !v.Fits || v.Remaining != 5 {
			t.Fatalf("an empty log is not a new one: %+v", v)
		}
	})
}
