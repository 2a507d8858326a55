package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A policy service that does not answer for a moment, such as on a busy machine, is not unavailable: calls wait for
// it, also if they need it only to know that their token is still valid. (P25)
func TestCallsWaitForAPolicyServiceThatIsBusyForAMoment(t *testing.T) {
	t.Parallel()
	a := newApart(t, openPolicy, "")
	c := a.connect(t)
	untilItPasses(t, c, "safe")
	for _, pause := range []time.Duration{200, 500, 900, 1300} {
		a.pausedFor(t, pause*time.Millisecond, func() {
			if resp := c.Call("safe", "{}"); resp.Status != http.StatusOK || resp.IsError(t) {
				t.Errorf("the policy service is busy for %d ms: %d %s", pause, resp.Status, resp.Body)
			}
		})
	}
}

// pausedFor stops the policy service for a time, and calls fn repeatedly until it continues, and once after that.
func (a *apart) pausedFor(t *testing.T, pause time.Duration, fn func()) {
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
