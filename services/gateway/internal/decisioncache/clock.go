package decisioncache

import "time"

// An instant is a time on two clocks. The first clock is monotonic, but stops while the machine sleeps. The second
// clock is the wall clock, which people can change. A lease expires as soon as one of the two clocks reaches the end of
// the lease. CLOCK_BOOTTIME is monotonic and continues while the machine sleeps, but it is not used, because reading it
// needs a system call.
type instant struct{ monotonic, wall time.Duration }

// start is the origin of the monotonic clock.
var start = time.Now() //nolint:gochecknoglobals // like the runtime's own

func now() instant {
	t := time.Now()
	return instant{monotonic: t.Sub(start), wall: time.Duration(t.UnixNano())}
}

func (i instant) after(d time.Duration) instant { return instant{i.monotonic + d, i.wall + d} }

// reaches reports whether the instant is at or after the given end on at least one of the two clocks.
func (i instant) reaches(end instant) bool { return i.monotonic >= end.monotonic || i.wall >= end.wall }
