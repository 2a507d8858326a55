package mesh_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The policy service does not respond for a moment, as on a busy machine. Calls wait for the policy service, including
// calls that need it only to check their token.
func TestDistributed_CallsWaitForABusyPolicyService(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, stack.OpenPolicy, "")
	c := a.Connect(t)
	awaitCallPasses(t, c, "safe")
	for _, pause := range []time.Duration{200, 500, 900, 1300} {
		callDuringPause(t, a, pause*time.Millisecond, func() {
			if resp := c.Call("safe", "{}"); resp.Status != http.StatusOK || resp.IsError(t) {
				t.Errorf("the policy service is busy for %d ms: %d %s", pause, resp.Status, resp.Body)
			}
		})
	}
}

// callDuringPause suspends the policy service for the duration pause. It calls fn repeatedly until the policy service
// continues, and once more when the policy service is running again.
func callDuringPause(t *testing.T, a *rawmesh.Distributed, pause time.Duration, fn func()) {
	t.Helper()
	a.Signal(t, policyRole, stack.SIGSTOP)
	defer a.AwaitReady(t)
	went := make(chan struct{})
	time.AfterFunc(pause, func() {
		a.Signal(t, policyRole, stack.SIGCONT)
		close(went)
	})
	for {
		fn()
		select {
		case <-went:
			fn()
			return
		default:
		}
	}
}
