package kept

import "time"

// An instant is a moment by two clocks. The one goes evenly, but stands still while the
// machine sleeps; the other is set on by then, and by people too. A lease is over as soon as
// one of them says so. Both are read at once without the kernel's help, as the clock that
// does both (CLOCK_BOOTTIME) can't be.
type instant struct{ even, wall time.Duration }

// start is what the even clock counts from.
var start = time.Now() //nolint:gochecknoglobals // as the runtime's own

func now() instant {
	t := time.Now()
	return instant{even: t.Sub(start), wall: time.Duration(t.UnixNano())}
}

// after is a moment later by both clocks.
func (i instant) after(d time.Duration) instant { return instant{i.even + d, i.wall + d} }

// reaches reports whether a moment has come by either clock.
func (i instant) reaches(end instant) bool { return i.even >= end.even || i.wall >= end.wall }
