package gosched

import (
	"runtime"
	"sync/atomic"
	"time"
)

// wideFor is how long GOMAXPROCS stays raised after long work.
const wideFor = time.Second

// width is the state of [RaiseMaxProcs]. The zero value never raises GOMAXPROCS.
var width struct {
	// usual is GOMAXPROCS without long work, and most is GOMAXPROCS with long work. If most is 0, GOMAXPROCS is never
	// raised.
	usual, most atomic.Int32
	// wide is true while GOMAXPROCS is raised. worked is the time of the last long work, in nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// RaiseMaxProcs makes long work raise GOMAXPROCS to most, until a second after the work has ended. Two pieces of long
// work then can't occupy all threads. The operating system, which knows which thread has waited, shares the processors
// between the threads. GOMAXPROCS is not raised all the time, because a higher value makes each call a tenth more
// expensive. RaiseMaxProcs must be called at most once, when the process starts.
func RaiseMaxProcs(most int) {
	width.usual.Store(int32(runtime.GOMAXPROCS(0)))
	width.most.Store(int32(most))
}

// NoteLongWork records that there is long work.
func NoteLongWork() {
	if width.most.Load() == 0 {
		return
	}
	width.worked.Store(time.Now().UnixNano())
	if width.wide.CompareAndSwap(false, true) {
		// GOMAXPROCS is set in another goroutine, because the runtime waits until its garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(width.most.Load()))
			narrowLater(wideFor)
		}()
	}
}

// narrowLater restores GOMAXPROCS after the given time, unless there has been long work meanwhile.
func narrowLater(after time.Duration) {
	time.AfterFunc(after, func() {
		if left := wideFor - time.Since(time.Unix(0, width.worked.Load())); left > 0 {
			narrowLater(left)
			return
		}
		runtime.GOMAXPROCS(int(width.usual.Load()))
		width.wide.Store(false)
	})
}
