package app

import (
	"runtime"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// leastAtATime is how much Go works on at a time while there is long work, however few
// processors the machine has.
const leastAtATime = 4

// Tune has Go work on some things at a time beside long work where the machine has fewer
// processors: the system divides them then, and lets what has waited go before long work,
// which Go lets go on for 10 ms (docs/decisions/0020-rests.md). What the operator says with
// GOMAXPROCS stays, and so does what a container may have: more at a time than that would
// use its time up early, and stop it.
func Tune() {
	_, told := Env("GOMAXPROCS")
	if now := runtime.GOMAXPROCS(0); !told && now == runtime.NumCPU() && now < leastAtATime {
		turn.Widen(leastAtATime)
	}
}
