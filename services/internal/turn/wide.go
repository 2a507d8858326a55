package turn

import (
	"runtime"
	"sync/atomic"
	"time"
)

// wideFor is how long GOMAXPROCS stays raised after long work.
const wideFor = time.Second

// width is the state of raising GOMAXPROCS. The zero value never raises it.
var width struct {
	// usual is GOMAXPROCS without long work, and most with it; 0: never raised.
	usual, most atomic.Int32
	// wide is set while most is in force. worked is when there was long work last, in nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// Widen raises GOMAXPROCS to most while there is long work and for a second after it: then two pieces of long work
// can't occupy all threads, and the system, which knows which thread has waited, divides the processors. Otherwise
// GOMAXPROCS is unchanged, because a higher value costs each call a tenth. Widen must be called once, at the start.
func Widen(most int) {
	width.usual.Store(int32(runtime.GOMAXPROCS(0)))
	width.most.Store(int32(most))
}

// longWork notes that there is long work.
func longWork() {
	if width.most.Load() == 0 {
		return
	}
	width.worked.Store(time.Now().UnixNano())
	if width.wide.CompareAndSwap(false, true) {
		// This runs in another goroutine, because the runtime waits until its garbage collector is done.
		go func() {
			runtime.GOMAXPROCS(int(width.most.Load()))
			narrowLater(wideFor)
		}()
	}
}

// narrowLater restores GOMAXPROCS after a while, unless there is long work meanwhile.
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
