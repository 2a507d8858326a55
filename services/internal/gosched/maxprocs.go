package gosched

import (
	"runtime"
	"sync/atomic"
	"time"
)

// raisedFor is how long GOMAXPROCS stays raised after long work.
const raisedFor = time.Second

// maxProcs is the state of [RaiseMaxProcs]. The zero value never raises GOMAXPROCS.
var maxProcs struct {
	// usual is GOMAXPROCS without long work, and most is GOMAXPROCS with long work. If most is 0, GOMAXPROCS is never
	// raised.
	usual, most atomic.Int32
	// wide is true while GOMAXPROCS is raised. worked is the time of the last long work, in nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// RaiseMaxProcs makes long work raise GOMAXPROCS to the value most until a second after the work has ended. Two pieces
// of long work therefore can't occupy all threads. The operating system, which knows which thread has waited, shares
// the processors between the threads. GOMAXPROCS is not raised all the time, because a higher value makes each call a
// tenth more expensive. RaiseMaxProcs must be called at most once, when the process starts.
func RaiseMaxProcs(most int) {
	maxProcs.usual.Store(int32(runtime.GOMAXPROCS(0)))
	maxProcs.most.Store(int32(most))
}

// NoteLongWork records that there is long work.
func NoteLongWork() {
	if maxProcs.most.Load() == 0 {
		return
	}
	maxProcs.worked.Store(time.Now().UnixNano())
	if maxProcs.wide.CompareAndSwap(false, true) {
		// GOMAXPROCS is set in another goroutine, because the runtime waits until its garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(maxProcs.most.Load()))
			restoreLater(raisedFor)
		}()
	}
}

// restoreLater restores GOMAXPROCS after the given time, unless there is more long work during that time.
func restoreLater(after time.Duration) {
	time.AfterFunc(after, func() {
		if left := raisedFor - time.Since(time.Unix(0, maxProcs.worked.Load())); left > 0 {
			restoreLater(left)
			return
		}
		runtime.GOMAXPROCS(int(maxProcs.usual.Load()))
		maxProcs.wide.Store(false)
	})
}
