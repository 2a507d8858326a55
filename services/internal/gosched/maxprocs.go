package gosched

import (
	"runtime"
	"sync/atomic"
	"time"
)

// raisedFor is the time for which GOMAXPROCS stays raised after long work.
const raisedFor = time.Second

// maxProcs is the state of [RaiseMaxProcs]. The zero value never raises GOMAXPROCS.
var maxProcs struct {
	// usual is GOMAXPROCS without long work. most is GOMAXPROCS during long work. If most is 0, GOMAXPROCS is never
	// raised.
	usual, most atomic.Int32
	// wide is true while GOMAXPROCS is raised. worked is the time of the last long work, in nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// RaiseMaxProcs makes long work raise GOMAXPROCS to most until one second after the work. Therefore two pieces of long
// work can't occupy all threads. The operating system, which knows which threads have waited, shares the processors
// between the threads. GOMAXPROCS is not always raised, because a higher value makes each call a tenth more expensive.
// RaiseMaxProcs must be called at most once, when the process starts.
func RaiseMaxProcs(most int) {
	maxProcs.usual.Store(int32(runtime.GOMAXPROCS(0)))
	maxProcs.most.Store(int32(most))
}

// NoteLongWork records that long work runs.
func NoteLongWork() {
	if maxProcs.most.Load() == 0 {
		return
	}
	maxProcs.worked.Store(time.Now().UnixNano())
	if maxProcs.wide.CompareAndSwap(false, true) {
		// Another goroutine sets GOMAXPROCS, because the call waits until the garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(maxProcs.most.Load()))
			restoreLater(raisedFor)
		}()
	}
}

// restoreLater restores GOMAXPROCS after the given time, unless there is more long work in that time.
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
