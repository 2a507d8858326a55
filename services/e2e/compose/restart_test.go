//go:build compose

package compose_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// healTime is the maximum time for which the mesh may refuse calls after a service that they need has become available
// again.
const healTime = 15 * time.Second

// restartStories restarts the services that check calls and store records. denied is the id of an earlier decision.
func restartStories(t *testing.T, d *deployment, denied string) {
	client := npmtest.StartClient(t, d.mcp(), d.agent)
	passes := func() (passed bool, code string) {
		result := client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t)
		if !result.IsError {
			return true, ""
		}
		return false, decisionOf(t, result).Code
	}
	heals := func(t *testing.T) {
		t.Helper()
		d.logTime(t, "healing", func() {
			eventually.Within(t, healTime, "calls are allowed again", func() bool { passed, _ := passes(); return passed })
		})
	}
	t.Run("of policy: calls are refused during it, and allowed after it", func(t *testing.T) {
		d.compose(t, "stop", "policy")
		eventually.Within(t, healTime, "a call is refused without policy", func() bool {
			passed, code := passes()
			return !passed && code == "policy_unavailable"
		})
		eventually.Within(t, healTime, "the gateway's probe reports that the gateway is not ready", func() bool {
			_, err := d.tryRun(t, commandTime, "docker", "compose", "exec", "gateway", "gateway", "-probe")
			return err != nil && strings.Contains(err.Error(), "not ready")
		})
		d.compose(t, "start", "policy")
		heals(t)
	})
	t.Run("of policy, in one command", func(t *testing.T) {
		d.compose(t, "restart", "policy")
		heals(t)
	})
	t.Run("of the gateway: earlier decisions are still recorded", func(t *testing.T) {
		d.compose(t, "up", "--detach", "--force-recreate", "--no-deps", "--wait", "gateway")
		if got := d.cli(t, "decisions", "show", denied); !strings.Contains(got, "delete_note") {
			t.Errorf("decision %s is %s", denied, got)
		}
		client := npmtest.StartClient(t, d.mcp(), d.agent)
		if result := client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t); result.IsError {
			t.Errorf("a call is refused: %s", result.Text())
		}
	})
	t.Run("of everything: keys and tokens stay the same", func(t *testing.T) {
		d.run(t, readyTime, "docker", "compose", "up", "--detach", "--force-recreate", "--wait")
		if again := strings.TrimSpace(d.cli(t, "token", "show", "agent")); again != d.agent {
			t.Error("the agent has another token")
		}
		client := npmtest.StartClient(t, d.mcp(), d.agent)
		if result := client.CallTool(npmtest.ToolCall{Name: "list_notes"}).ToolResult(t); result.IsError {
			t.Errorf("a call is refused: %s", result.Text())
		}
	})
}
