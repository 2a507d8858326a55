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
	// usual is the value of GOMAXPROCS without long work. most is its value during long work. If most is 0, GOMAXPROCS
	// is never raised.
	usual, most atomic.Int32
	// wide is true while GOMAXPROCS is raised. worked is the time of the last long work, in nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// RaiseMaxProcs makes long work raise GOMAXPROCS to most until one second after the work. Therefore two pieces of long
// work can't occupy all threads. The operating system then shares the processors between the threads; it knows which
// threads have waited. GOMAXPROCS is not raised permanently, because a higher value makes each call about 10 % more
// expensive. RaiseMaxProcs must be called at most once, when the process starts.
func RaiseMaxProcs(most int) {
	maxProcs.usual.Store(int32(runtime.GOMAXPROCS(0)))
	maxProcs.most.Store(int32(most))
}

// NoteLongWork records that long work is running.
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

// restoreLater restores GOMAXPROCS after the given time, unless there is more long work before then.
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
