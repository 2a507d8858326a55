package turn

import (
	"runtime"
	"sync/atomic"
	"time"
)

// wideFor is how long Go stays wide after long work.
const wideFor = time.Second

// width is how much Go works on at a time in this process. The zero value leaves that as
// it is.
var width struct {
	// usual is how much where there is no long work, and most where there is; 0: as usual.
	usual, most atomic.Int32
	// wide says that most is in force, and worked when long work went on last, in
	// nanoseconds since 1970.
	wide   atomic.Bool
	worked atomic.Int64
}

// Widen has Go work on so many things at a time while there is long work and for a second
// after it: two pieces of it can't keep all that Go gives out then, and the system, which
// knows who has waited, divides the processors. Else it stays as it is: more at a time
// costs each call a tenth. It is to be called once, at the start.
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
		// Not here: the runtime waits until its collector is done.
		go func() {
			runtime.GOMAXPROCS(int(width.most.Load()))
			narrowLater(wideFor)
		}()
	}
}

// narrowLater has Go work on as much as usual after a while, if there was no long work.
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
