// Package window implements the sliding windows of rate limits. In any closed period of the window's length, no more
// units are taken than the limit. Closed means that both ends belong to the period, so two units exactly one window
// apart both count.
//
// A window is a log of the times at which units were taken. If the limit is at most [MaxExact], the log contains the
// exact times, and its results are exact to the nanosecond. For a higher limit, the window is divided into 64 slots,
// and each time is rounded up to the end of its slot, so that the log stays short. Because of the rounding, a unit can
// count for up to one slot too long, but never for too short a time. Therefore a window can refuse units that fit, but
// it never admits too many units.
//
// The limit may differ between calls, because a log contains only the times and the numbers of units.
package window

import "time"

const (
	// MaxExact is the maximum limit for which the log contains exact times.
	MaxExact = 256
	// MaxLength is the maximum length of a window.
	MaxLength = 366 * 24 * time.Hour

	// slots is the number of slots of a window if the limit is above MaxExact.
	slots = 64
	// horizon is the latest time, about 100 years after the start. Later times are treated as horizon, so that sums of
	// times don't overflow.
	horizon = 100 * MaxLength
)

// Log is the window of one bucket. Times are durations since a start that the caller chooses, and must not be negative.
// If a time is before the time of an earlier call, the Log uses the time of the earlier call. Therefore a clock that
// jumps back admits no extra units.
//
// In the zero Log no units fit. Use [New]. A Log is not safe for concurrent use.
type Log struct {
	length  time.Duration
	seen    time.Duration // the latest time passed to any method
	used    int64         // sum of the units of entries
	entries ring          // in ascending order of time, with distinct times
}

// Verdict is the result of [Log.Check].
type Verdict struct {
	// Fits is true if the units fit now.
	Fits bool
	// Never is true if the units will never fit. In that case, the cost is more than the limit or less than 1, or the
	// length of the window is out of range.
	Never bool
	// Wait is how long it takes until the units fit, if no other units are taken in that time. If the limit is at most
	// MaxExact, the units do not fit a nanosecond earlier. Wait is 0 if Fits or Never is true.
	Wait time.Duration
	// Remaining is the number of units that can be taken now, between 0 and the limit.
	Remaining int64
}

// New returns an empty log for a window whose length is between 1 ns and [MaxLength]. With any other length, no units
// fit.
func New(length time.Duration) Log {
	return Log{length: length}
}

// Length returns the length of the window.
func (g *Log) Length() time.Duration { return g.length }

// Check reports whether the units fit under the limit now, and if not, when they will fit. It takes no units.
func (g *Log) Check(now time.Duration, cost, limit int64) Verdict {
	g.advance(now)
	v := Verdict{Remaining: g.remaining(limit)}
	switch {
	case g.neverFits(cost, limit):
		v.Never = true
	case cost <= v.Remaining:
		v.Fits = true
	default:
		v.Wait = g.wait(cost, limit)
	}
	return v
}

// Take takes the units now if they fit under the limit, and reports whether it took them. The stamp is the argument for
// [Log.Undo].
func (g *Log) Take(now time.Duration, cost, limit int64) (stamp time.Duration, ok bool) {
	g.advance(now)
	if g.neverFits(cost, limit) || cost > g.remaining(limit) {
		return 0, false
	}
	stamp = g.stamp(limit)
	if last := g.entries.last(); last != nil && last.at >= stamp {
		// The last entry is for the same slot, or it has a later time because the limit was higher when the entry was added.
		// The time of the last entry is used, so that times stay in ascending order. Therefore the units can count for too
		// long, but never for too short a time.
		stamp = last.at
		last.units += cost
	} else {
		g.entries.push(entry{at: stamp, units: cost}, limit)
	}
	g.used += cost
	return stamp, true
}

// Undo removes the units that a call to [Log.Take] took. It must be called at most once for each call to Take, with the
// stamp that Take returned and the same cost. If the units no longer count, Undo does nothing.
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

// Empty reports whether no unit counts at the given time. An empty log behaves like a new one.
func (g *Log) Empty(now time.Duration) bool {
	g.advance(now)
	return g.entries.count == 0
}

// EmptyFrom returns the first time at which the log is empty, if no more units are taken.
func (g *Log) EmptyFrom() time.Duration {
	last := g.entries.last()
	if last == nil {
		return g.seen
	}
	return g.freed(last)
}

// advance moves the log's clock to the given time, and removes entries that no longer count.
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

// freed returns the first time at which an entry no longer counts. The entry still counts exactly one window after its
// time, because the period is closed.
func (g *Log) freed(e *entry) time.Duration {
	return e.at + g.length + 1
}

// neverFits reports whether the cost can't be taken even from an empty log.
func (g *Log) neverFits(cost, limit int64) bool {
	return cost < 1 || cost > limit || g.length < 1 || g.length > MaxLength
}

// remaining returns the number of units that fit. It returns 0 if the limit is now below the number of units that are
// taken.
func (g *Log) remaining(limit int64) int64 {
	return max(0, max(0, limit)-g.used)
}

// wait returns the time until enough of the oldest units no longer count, so that cost fits. The cost must not fit now,
// and must fit in an empty log.
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

// stamp returns the time to record for units that are taken now.
func (g *Log) stamp(limit int64) time.Duration {
	if limit <= MaxExact {
		return g.seen
	}
	slot := (g.length + slots - 1) / slots
	return g.seen - g.seen%slot + slot - 1
}
