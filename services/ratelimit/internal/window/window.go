// Package window implements a sliding window: never more than limit units in any
// closed stretch of the window's length. Closed means that both ends belong to
// the stretch: of two units that are exactly one window apart, both count.
//
// A window is a log of when units were taken. Where the limit is at most [MaxExact]
// the log holds the very times, and its answers are exact to the nanosecond.
// Above, a time is written down as the end of its slot, a 64th of the window, so
// that the log stays short. That rounds against the caller: units are forgotten
// up to one slot late and never early, so a slot may refuse early but never
// admits one too many.
//
// Since the limit only decides what fits and how a new time is rounded, it may
// change between any two calls and the history holds.
package window

import "time"

const (
	// MaxExact is the largest limit that is counted to the nanosecond.
	MaxExact = 256
	// MaxLength is the greatest length of a window.
	MaxLength = 366 * 24 * time.Hour

	// slots is how many parts a window is rounded to where the limit is over MaxExact.
	slots = 64
	// horizon is the last instant that is told apart, about 100 years: it keeps
	// sums of times from overflowing.
	horizon = 100 * MaxLength
)

// Log is the window of one bucket. Instants are durations since a moment that the
// caller chose, the same for all calls; they count from 0. A Log that is shown an
// instant before one that it has seen stays at the later one, so a clock that
// jumps back admits nothing extra.
//
// The zero value fits nothing; use [New]. A Log is not safe for concurrent use.
type Log struct {
	length  time.Duration
	seen    time.Duration // latest instant shown
	used    int64         // sum over entries
	entries ring          // ascending times, each once
}

// Verdict is what [Log.Ask] says.
type Verdict struct {
	// Fits reports whether the units could be taken now.
	Fits bool
	// Never tells that they will not fit at any time: the cost alone is more than
	// the limit, or the question makes no sense (a cost below 1).
	Never bool
	// Wait is how long until they fit, if nobody else takes; 0 where Fits or Never
	// is set. At now+Wait they do fit; where the limit is at most MaxExact, a nanosecond
	// before they did not.
	Wait time.Duration
	// Remaining is how many units are left now, nothing taken: 0 to the limit.
	Remaining int64
}

// New returns an empty log for a window of the given length: 1 ns to
// [MaxLength]. With any other length nothing ever fits.
func New(length time.Duration) Log {
	return Log{length: length}
}

// Length returns the length that the log was made for.
func (g *Log) Length() time.Duration { return g.length }

// Ask reports whether cost units fit under the limit now, and if not, when. It takes
// nothing.
func (g *Log) Ask(now time.Duration, cost, limit int64) Verdict {
	g.advance(now)
	v := Verdict{Remaining: g.room(limit)}
	switch {
	case g.never(cost, limit):
		v.Never = true
	case cost <= v.Remaining:
		v.Fits = true
	default:
		v.Wait = g.wait(cost, limit)
	}
	return v
}

// Take takes cost units now if they fit under the limit, and reports whether it did. The
// stamp is for [Log.Undo].
func (g *Log) Take(now time.Duration, cost, limit int64) (stamp time.Duration, ok bool) {
	g.advance(now)
	if g.never(cost, limit) || cost > g.room(limit) {
		return 0, false
	}
	stamp = g.stamp(limit)
	if last := g.entries.last(); last != nil && last.at >= stamp {
		// The slot is already there. Or it ends later than now, because the limit was
		// larger a moment ago: joining it keeps the times ascending, and errs
		// against the caller.
		stamp = last.at
		last.units += cost
	} else {
		g.entries.push(entry{at: stamp, units: cost}, limit)
	}
	g.used += cost
	return stamp, true
}

// Undo gives back what one [Log.Take] took, as if it had never been. It must be
// called at most once for a stamp that Take returned, with the same cost. Units
// that the window has left behind need no giving back, and nothing happens.
func (g *Log) Undo(stamp time.Duration, cost int64) {
	i, found := g.entries.find(stamp)
	if !found || cost < 1 {
		return
	}
	e := g.entries.at(i)
	cost = min(cost, e.units)
	e.units -= cost
	g.used -= cost
	if e.units == 0 {
		g.entries.remove(i)
	}
}

// Empty reports whether no unit counts at now: a log that is empty can be thrown
// away and made again.
func (g *Log) Empty(now time.Duration) bool {
	g.advance(now)
	return g.entries.count == 0
}

// EmptyFrom returns the first instant at which the log is empty if nothing more is
// taken.
func (g *Log) EmptyFrom() time.Duration {
	last := g.entries.last()
	if last == nil {
		return g.seen
	}
	return g.freed(last)
}

// advance moves the log's clock to now and forgets what no longer counts.
func (g *Log) advance(now time.Duration) {
	g.seen = max(g.seen, min(now, horizon))
	for g.entries.count > 0 {
		oldest := g.entries.at(0)
		if g.freed(oldest) > g.seen {
			return
		}
		g.used -= oldest.units
		g.entries.remove(0)
	}
}

// freed is the first instant at which e no longer counts. One window after its
// time it still does, because the stretch between the two is closed.
func (g *Log) freed(e *entry) time.Duration {
	return e.at + g.length + 1
}

// never reports whether cost can't fit under the limit even in an empty log.
func (g *Log) never(cost, limit int64) bool {
	return cost < 1 || cost > limit || g.length < 1 || g.length > MaxLength
}

// room is how many units fit. After the limit was lowered more may be taken than fit.
func (g *Log) room(limit int64) int64 {
	return max(0, max(0, limit)-g.used)
}

// wait is how long until enough of the oldest units are forgotten. The caller
// knows that cost does not fit now and would fit in an empty log.
func (g *Log) wait(cost, limit int64) time.Duration {
	used := g.used
	for i := range g.entries.count {
		e := g.entries.at(i)
		used -= e.units
		if cost <= limit-used {
			return g.freed(e) - g.seen
		}
	}
	return g.EmptyFrom() - g.seen
}

// stamp is the time to write down for units taken now.
func (g *Log) stamp(limit int64) time.Duration {
	if limit <= MaxExact {
		return g.seen
	}
	slot := (g.length + slots - 1) / slots
	return g.seen - g.seen%slot + slot - 1
}
