package kept

import "time"

// An instant is a time by two clocks. One is monotonic, but stops while the machine sleeps; the other is the wall
// clock, which people can change. A lease is over as soon as one of the two says so. Both are read without a system
// call, unlike the clock that is monotonic and does not stop (CLOCK_BOOTTIME).
type instant struct{ even, wall time.Duration }

// start is the zero of the monotonic clock.
var start = time.Now() //nolint:gochecknoglobals // like the runtime's own

func now() instant {
	t := time.Now()
	return instant{even: t.Sub(start), wall: time.Duration(t.UnixNano())}
}

// after returns the instant that is d later by both clocks.
func (i instant) after(d time.Duration) instant { return instant{i.even + d, i.wall + d} }

// reaches reports whether end has come by one of the clocks.
func (i instant) reaches(end instant) bool { return i.even >= end.even || i.wall >= end.wall }
