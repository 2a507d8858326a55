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

// Case A2. Checks approved calls of a mesh that is killed with SIGKILL at random moments. No call runs more often than
// it was approved, no decision is lost, and no approval is stuck.
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
	t.Logf("%d kills: %d calls were decided, %d results received, %d calls reached the server, %d were interrupted after their intent",
		kills, len(p.decided), p.told.Load(), len(p.up.Calls("pay")), len(p.intended))
	if p.told.Load() == 0 || len(p.decided) < kills {
		t.Error("too few calls ran: this run proves nothing")
	}
}

// times returns the value of the environment variable, which is a positive number, or byDefault if it is not set.
func times(t *testing.T, variable string, byDefault int) int {
	t.Helper()
	text, ok := os.LookupEnv(variable)
	if !ok {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a positive number", variable, text)
	}
	return n
}
