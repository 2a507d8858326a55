package gosched

import (
	"runtime"
	"sync/atomic"
	"time"
)

// raisedFor is how long GOMAXPROCS stays raised after a long computation.
const raisedFor = time.Second

// maxProcs is the state of [RaiseMaxProcs]. The zero value never raises GOMAXPROCS.
var maxProcs struct {
	// usual is the normal value of GOMAXPROCS. The field most is its value during long computations. If most is 0,
	// GOMAXPROCS is never raised.
	usual, most atomic.Int32
	// wide is true while GOMAXPROCS is raised. worked is the time of the last long computation, in nanoseconds since
	// 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// RaiseMaxProcs makes long computations raise GOMAXPROCS to most until one second after they have ended. Therefore two
// long computations can't occupy all threads. The operating system then shares the processors between the threads,
// because it knows which threads have waited. GOMAXPROCS is not raised permanently, because a higher value makes each
// call about 10 % more expensive. RaiseMaxProcs must be called at most once, when the process starts.
func RaiseMaxProcs(most int) {
	maxProcs.usual.Store(int32(runtime.GOMAXPROCS(0)))
	maxProcs.most.Store(int32(most))
}

// NoteLongWork records that a long computation is running.
func NoteLongWork() {
	if maxProcs.most.Load() == 0 {
		return
	}
	maxProcs.worked.Store(time.Now().UnixNano())
	if maxProcs.wide.CompareAndSwap(false, true) {
		// GOMAXPROCS is set in another goroutine, because the call waits until the garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(maxProcs.most.Load()))
			restoreLater(raisedFor)
		}()
	}
}

// restoreLater restores GOMAXPROCS after the given time, or later if another long computation has run in the meantime.
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
