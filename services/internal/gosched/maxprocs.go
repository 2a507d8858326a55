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
	// normal is the value of GOMAXPROCS outside long computations, and raised is the value during long computations. If
	// raised is 0, GOMAXPROCS is never raised.
	normal, raised atomic.Int32
	// isRaised is true while GOMAXPROCS is raised. worked is the time of the last long computation, in nanoseconds since
	// 1970.
	isRaised atomic.Bool
	worked   atomic.Int64
}

// RaiseMaxProcs makes long computations raise GOMAXPROCS to the given value until one second after they have ended.
// With a higher GOMAXPROCS, two long computations can't occupy all threads, and the operating system shares the
// processors between the threads, because it knows which threads have waited. GOMAXPROCS is not raised permanently,
// because a higher value makes each call about 10 % more expensive. RaiseMaxProcs must be called at most once, when the
// process starts.
func RaiseMaxProcs(value int) {
	maxProcs.normal.Store(int32(runtime.GOMAXPROCS(0)))
	maxProcs.raised.Store(int32(value))
}

// NoteLongWork records that a long computation is running.
func NoteLongWork() {
	if maxProcs.raised.Load() == 0 {
		return
	}
	maxProcs.worked.Store(time.Now().UnixNano())
	if maxProcs.isRaised.CompareAndSwap(false, true) {
		// GOMAXPROCS is set in another goroutine, because the call waits until the garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(maxProcs.raised.Load()))
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
		runtime.GOMAXPROCS(int(maxProcs.normal.Load()))
		maxProcs.isRaised.Store(false)
	})
}
