//go:build compose

package compose_test

import "testing"

// TestCompose runs the scenarios on one deployment. Their order matters, because the later scenarios restart services
// that the earlier scenarios use.
func TestCompose(t *testing.T) {
	d := startDeployment(t)
	calls := newCaller(t, d)
	t.Run("an agent's calls", calls.stories)
	t.Run("RPCs of an operator", func(t *testing.T) { grpcurlStories(t, d) })
	t.Run("an approved refund", func(t *testing.T) { refundStories(t, d, calls) })
	t.Run("the command line in its container", func(t *testing.T) { cliStories(t, d) })
	t.Run("servers of npx in containers", func(t *testing.T) { serverStories(t, d) })
	t.Run("one call is one trace", func(t *testing.T) { traceStories(t, d) })
	t.Run("an agent of the mesh", func(t *testing.T) { agentStories(t, d) })
	t.Run("services refuse unauthorized peers", func(t *testing.T) { peerStories(t, d) })
	t.Run("containers are confined", func(t *testing.T) { confinedStories(t, d) })
	t.Run("only the gateway reaches upstreams", func(t *testing.T) { networkStories(t, d) })
	t.Run("a limit allows calls at the time that the refusal named", calls.checkLimitReopens)
	t.Run("never more than 4 in any 6 s", calls.checkShorterLimit)
	t.Run("the mesh recovers after a restart", func(t *testing.T) { restartStories(t, d, calls.denied) })
}
