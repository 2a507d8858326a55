package decisioncache

import "time"

// An instant is a time on two clocks. The first is monotonic, but stops while the machine sleeps. The second is the
// wall clock, which people can change. A lease ends as soon as one of the clocks reaches its end. CLOCK_BOOTTIME is
// monotonic and does not stop, but these two clocks can be read without a system call.
type instant struct{ monotonic, wall time.Duration }

// start is the origin of the monotonic clock.
var start = time.Now() //nolint:gochecknoglobals // like the runtime's own

func now() instant {
	t := time.Now()
	return instant{monotonic: t.Sub(start), wall: time.Duration(t.UnixNano())}
}

func (i instant) after(d time.Duration) instant { return instant{i.monotonic + d, i.wall + d} }

// reaches reports whether at least one clock of i has reached end.
func (i instant) reaches(end instant) bool { return i.monotonic >= end.monotonic || i.wall >= end.wall }
