package e2e_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A2: the mesh is killed as kill -9 does at random moments while approved calls run: no call runs more often than
// it was approved, no decision is lost, and nothing is stuck.
func TestA2KilledMeshRunsNoApprovedCallTwice(t *testing.T) {
	t.Parallel()
	kills := times(t, "SLUICE_KILLS", 8)
	stack.Program(t, "sluice")
	p := newPaying(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(kills)*2*time.Second+patience)
	defer cancel()
	stop, wait := p.work(ctx, t, 8)
	for range kills {
		mesh := stack.Launch(t, p.site)
		<-time.After(300*time.Millisecond + rand.N(700*time.Millisecond))
		p.kill(t, mesh)
	}
	stop()
	stack.Start(t, p.site)
	wait()
	p.check(t)
	t.Logf("%d kills: %d calls were approved, %d results told, the server saw %d, %d were cut off after their intent",
		kills, len(p.decided), p.told.Load(), len(p.up.Calls("pay")), len(p.intended))
	if p.told.Load() == 0 || len(p.decided) < kills {
		t.Error("too little ran: this run proves nothing")
	}
}

// times returns the value of the variable as a number of times, or byDefault if it is not set.
func times(t *testing.T, variable string, byDefault int) int {
	t.Helper()
	text, ok := os.LookupEnv(variable)
	if !ok {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number of times", variable, text)
	}
	return n
}
