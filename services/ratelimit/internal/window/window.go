// Package window implements a sliding window, for the buckets of rate limits: at most limit units are taken in any
// closed period of the window's length. Closed means that both ends belong to the period: two units exactly one window
// apart both count.
//
// A window is a log of the times at which units were taken. If the limit is at most [MaxExact], the log has the exact
// times, and its answers are exact to the nanosecond. Above, each time is rounded up to the end of its slot, a 64th of
// the window, so that the log stays short. This rounding is against the caller: units stop counting up to one slot too
// late and never too early. So a window may refuse too early, but never admits too many.
//
// The limit only decides what fits and how a new time is rounded. So it may change between any two calls, and the log
// stays valid.
package window

import "time"

const (
	// MaxExact is the largest limit that is counted to the nanosecond.
	MaxExact = 256
	// MaxLength is the largest length of a window.
	MaxLength = 366 * 24 * time.Hour

	// slots is the number of slots in a window if the limit is above MaxExact.
	slots = 64
	// horizon is the last instant that is distinguished, about 100 years. It prevents overflows of sums of times.
	horizon = 100 * MaxLength
)

// Log is the window of one bucket. Instants are durations since a moment that the caller chose, the same for all calls,
// and start at 0. If an instant is before one that the Log has seen, the Log uses the later one, so a clock that jumps
// back admits nothing extra.
//
// The zero value fits nothing; use [New]. A Log is not safe for concurrent use.
type Log struct {
	length  time.Duration
	seen    time.Duration // latest instant seen
	used    int64         // sum of the units of entries
	entries ring          // by ascending time, each time once
}

// Verdict is the result of [Log.Ask].
type Verdict struct {
	// Fits is true if the units could be taken now.
	Fits bool
	// Never is true if the units will never fit: the cost alone is more than the limit, or the cost is below 1, or the
	// length of the window is out of range.
	Never bool
	// Wait is how long until the units fit, if no others are taken; 0 if Fits or Never is set. At now+Wait they fit. If
	// the limit is at most MaxExact, they do not fit a nanosecond before.
	Wait time.Duration
	// Remaining is how many units are left now, if nothing is taken: 0 to the limit.
	Remaining int64
}

// New returns an empty log for a window of the given length: 1 ns to [MaxLength]. With any other length nothing ever
// fits.
func New(length time.Duration) Log {
	return Log{length: length}
}

// Length returns the length of the window.
func (g *Log) Length() time.Duration { return g.length }

// Ask reports whether cost units fit under the limit now, and if not, when they will. It takes nothing.
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

// Take takes cost units now if they fit under the limit, and reports whether it did. The stamp is for [Log.Undo].
func (g *Log) Take(now time.Duration, cost, limit int64) (stamp time.Duration, ok bool) {
	g.advance(now)
	if g.never(cost, limit) || cost > g.room(limit) {
		return 0, false
	}
	stamp = g.stamp(limit)
	if last := g.entries.last(); last != nil && last.at >= stamp {
		// The entry of this slot exists already. Or the last entry ends later than now, because the limit was larger
		// before. Joining it keeps the times ascending, and errs against the caller.
		stamp = last.at
		last.units += cost
	} else {
		g.entries.push(entry{at: stamp, units: cost}, limit)
	}
	g.used += cost
	return stamp, true
}

// Undo gives back what one [Log.Take] took, as if it had not been taken. It must be called at most once for a stamp
// that Take returned, with the same cost. If the units no longer count, Undo does nothing.
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

// Empty reports whether no unit counts at now. An empty log is equal to a new one.
func (g *Log) Empty(now time.Duration) bool {
	g.advance(now)
	return g.entries.count == 0
}

// EmptyFrom returns the first instant at which the log is empty if nothing more is taken.
func (g *Log) EmptyFrom() time.Duration {
	last := g.entries.last()
	if last == nil {
		return g.seen
	}
	return g.freed(last)
}

// advance moves the log's clock to now, and removes entries that no longer count.
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

// freed returns the first instant at which e no longer counts. One window after its time e still counts, because the
// period is closed.
func (g *Log) freed(e *entry) time.Duration {
	return e.at + g.length + 1
}

// never reports whether cost can't fit under the limit even in an empty log.
func (g *Log) never(cost, limit int64) bool {
	return cost < 1 || cost > limit || g.length < 1 || g.length > MaxLength
}

// room returns how many units fit. After the limit was lowered, more may be taken than the limit allows.
func (g *Log) room(limit int64) int64 {
	return max(0, max(0, limit)-g.used)
}

// wait returns how long until enough of the oldest units stop counting. The cost must not fit now, and must fit in an
// empty log.
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

// stamp returns the time to record for units taken now.
func (g *Log) stamp(limit int64) time.Duration {
	if limit <= MaxExact {
		return g.seen
	}
	slot := (g.length + slots - 1) / slots
	return g.seen - g.seen%slot + slot - 1
}
