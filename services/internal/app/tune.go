package app

import (
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// leastAtATime is the minimum number of goroutines that run at a time during long work, independent of the number of
// processors.
const leastAtATime = 4

// spareHeap is how many bytes of the heap the garbage collector counts as used although they are not. They are never
// touched, so they take no memory.
const spareHeap = 32 << 20

// Tune sets GOMAXPROCS, the memory limit and the garbage collector, except for what the operator sets with
// GOMAXPROCS, GOMEMLIMIT, AUTOMEMLIMIT and GOGC.
//
// On machines with few processors it raises GOMAXPROCS: then the system divides the processors, and runs what has
// waited before long work, which Go preempts only after 10 ms (docs/decisions/0020-cooperative-scheduling.md). In a
// container with a limit of processor time GOMAXPROCS stays: more would use up the time early and stop the process.
// Of a container's memory limit Go uses nine tenths before it collects all the time. A small heap is collected less
// often (docs/decisions/0030-performance.md).
func Tune() {
	_, told := Env("GOMAXPROCS")
	if now := runtime.GOMAXPROCS(0); !told && now == runtime.NumCPU() && now < leastAtATime {
		turn.Widen(leastAtATime)
	}
	limit, err := memlimit.Set()
	if err != nil {
		limit = math.MaxInt64 // if no limit can be read, there is none, as before
	}
	if _, told := Env("GOGC"); told {
		return
	}
	spare = make([]byte, min(spareHeap, limit/8))
	runtime.KeepAlive(spare)
	if _, told := Env("GOMEMLIMIT"); !told && limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit + int64(len(spare))) // counted by Go, and not used
	}
}

// spare is the allocation of at most spareHeap bytes.
var spare []byte //nolint:gochecknoglobals // kept for the lifetime of the program
