package app

import (
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// leastAtATime is how much Go works on at a time while there is long work, however few
// processors the machine has.
const leastAtATime = 4

// spareHeap is how much of the heap the collector takes for used where it is not, in bytes. It
// is never touched, so it takes no memory itself.
const spareHeap = 32 << 20

// Tune sets what Go leaves to programs, save for what the operator says with GOMAXPROCS,
// GOMEMLIMIT, AUTOMEMLIMIT and GOGC.
//
// It has Go work on some things at a time beside long work where the machine has fewer
// processors: the system divides them then, and lets what has waited go before long work,
// which Go lets go on for 10 ms (docs/decisions/0020-cooperative-scheduling.md). What a container may have
// stays: more at a time than that would use its time up early, and stop it.
//
// Of the memory that a container may have Go takes nine tenths before it collects all the time, and
// it collects a small heap less often (docs/decisions/0030-performance.md).
func Tune() {
	_, told := Env("GOMAXPROCS")
	if now := runtime.GOMAXPROCS(0); !told && now == runtime.NumCPU() && now < leastAtATime {
		turn.Widen(leastAtATime)
	}
	limit, err := memlimit.Set()
	if err != nil {
		limit = math.MaxInt64 // where no limit can be read there is none, as before
	}
	if _, told := Env("GOGC"); told {
		return
	}
	spare = make([]byte, min(spareHeap, limit/8))
	runtime.KeepAlive(spare)
	if _, told := Env("GOMEMLIMIT"); !told && limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit + int64(len(spare))) // which Go counts, and nobody uses
	}
}

// spare is that heap.
var spare []byte //nolint:gochecknoglobals // it lasts as long as the program
