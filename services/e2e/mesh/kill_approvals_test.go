package mesh_test

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Case A2. The test kills a mesh with SIGKILL at random times while approved calls are running. No call runs more often
// than it was approved, no vote is lost, and no approval stays claimed.
func TestKill_NoApprovedCallRunsTwice(t *testing.T) {
	t.Parallel()
	kills := repetitions(t, "SLUICE_KILLS", 8)
	stack.Program(t, "sluice")
	p := newPaymentRun(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(kills)*2*time.Second+waitTimeLimit)
	defer cancel()
	stop, wait := p.startWork(ctx, t, 8)
	for range kills {
		mesh := stack.Launch(t, p.meshConfig)
		<-time.After(300*time.Millisecond + rand.N(700*time.Millisecond))
		p.killMesh(t, mesh)
	}
	stop()
	stack.Start(t, p.meshConfig)
	wait()
	p.checkResults(t)
	t.Logf("%d kills: %d calls were decided, %d results received, %d calls reached the server, %d were interrupted after their intent",
		kills, len(p.decided), p.received.Load(), len(p.upstream.Calls("pay")), len(p.intended))
	if p.received.Load() == 0 || len(p.decided) < kills {
		t.Error("too few calls ran: this run proves nothing")
	}
}

// repetitions returns the positive number in an environment variable, or byDefault if it is not set.
func repetitions(t *testing.T, variable string, byDefault int) int {
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
