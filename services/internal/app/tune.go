package app

import (
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// minProcs is the minimum GOMAXPROCS during long computations, even on a machine with fewer processors.
const minProcs = 4

// spareHeap is the size, in bytes, of an allocation that is never used. The garbage collector counts it as part of the
// heap and therefore runs less often. Its pages are never accessed, so they use no memory.
const spareHeap = 32 << 20

// Tune adjusts GOMAXPROCS, the memory limit and the pace of the garbage collector. It does not override the environment
// variables GOMAXPROCS, GOMEMLIMIT, AUTOMEMLIMIT and GOGC.
//
// On a machine with few processors, Tune raises GOMAXPROCS during long computations, so that the operating system
// shares the processors between the goroutines. Go itself preempts a long computation only after 10 ms
// (docs/decisions/0020-cooperative-scheduling.md). If a container limits processor time, Tune does not raise
// GOMAXPROCS. A higher value would use up the time early, and the kernel would then throttle the process until the next
// period.
//
// If a container limits memory, Tune sets the Go memory limit to nine tenths of the container's limit. Tune makes the
// garbage collector run less often while the heap is small (docs/decisions/0030-performance.md).
func Tune() {
	_, isSet := Env("GOMAXPROCS")
	if now := runtime.GOMAXPROCS(0); !isSet && now == runtime.NumCPU() && now < minProcs {
		gosched.RaiseMaxProcs(minProcs)
	}
	limit, err := memlimit.Set()
	if err != nil {
		limit = math.MaxInt64 // an unreadable limit counts as no limit
	}
	if _, isSet := Env("GOGC"); isSet {
		return
	}
	spare = make([]byte, min(spareHeap, limit/8))
	runtime.KeepAlive(spare)
	if _, isSet := Env("GOMEMLIMIT"); !isSet && limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit + int64(len(spare))) // Go counts the spare heap, although it uses no memory
	}
}

// spare is an allocation of at most spareHeap bytes.
var spare []byte //nolint:gochecknoglobals // must stay reachable until the program ends
