package approvals_test

import (
	"crypto/rand"
	"os"
	"strings"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// changePolicy replaces the policy and waits until the new policy is in force. The text of the new policy must end with
// its tools, because changePolicy appends a rule that denies a tool with a new name, and calls this tool until the rule
// denies the call. It can't just wait for a new revision, because the revision also changes with the catalog. It also
// waits until the gateway has received the new revision, because the gateway uses cached decisions until then.
func changePolicy(t *testing.T, f *rawmesh.Mesh, c *stack.Client, policy string) {
	t.Helper()
	mark := "mark-" + strings.ToLower(rand.Text())
	if err := os.WriteFile(f.Policy, []byte(policy+"  "+mark+": {action: deny}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := gatewayv1.NewGatewayServiceClient(f.Operator(t))
	eventually.Holds(t, "the policy is in force", func() bool {
		d := c.Call(mark, `{}`).Decision(t)
		status, err := gateway.GetStatus(t.Context(), new(gatewayv1.GetStatusRequest))
		return err == nil && d.Code == "denied_by_rule" && d.PolicyRevision == status.GetPolicyRevision()
	})
}

// The policy changes so that a call no longer needs approval. The call's approval is cancelled, even if approvers have
// already voted. The test checks that no later call runs because of that approval.
func TestApprovals_AreCancelledWhenPolicyAllowsOrDeniesTheCall(t *testing.T) {
	t.Parallel()
	const asks = "pay: {action: require_approval"
	allows, denies := strings.Replace(rawmesh.PayPolicy, asks, "pay: {action: allow", 1), strings.Replace(rawmesh.PayPolicy, asks, "pay: {action: deny", 1)
	for _, tt := range []struct {
		name, policy, code string
		approved           bool
		ran                int
	}{
		{"approved, allowed", allows, "", true, 1},
		{"approved, denied", denies, "denied_by_rule", true, 0},
		{"pending, allowed", allows, "", false, 1},
		{"pending, denied", denies, "denied_by_rule", false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s}")
			c := f.Connect(t)
			c.Call("pay", `{"sum":1.50}`)
			id := f.AwaitOnePending(t)
			if tt.approved {
				stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
			}
			changePolicy(t, f, c, tt.policy)
			if resp := c.Call("pay", `{"sum":15e-1}`); resp.Decision(t).Code != tt.code || resp.IsError(t) != (tt.code != "") {
				t.Errorf("under the new policy the response is %s", resp.Body)
			}
			f.AwaitState(t, id, "cancelled")
			if d := c.Call("pay", `{"sum":1.5}`).Decision(t); d.Code != tt.code {
				t.Errorf("the second call under the new policy: %+v", d)
			}
			changePolicy(t, f, c, rawmesh.PayPolicy)
			if d := c.Call("pay", `{"sum":1.5}`).Decision(t); d.Code != "approval_pending" || f.AwaitOnePending(t) == id {
				t.Errorf("under the first policy again: %+v", d)
			}
			if n := len(f.Upstream.Calls("pay")); n != 2*tt.ran {
				t.Errorf("%d calls were sent, want the two that policy allowed, or none", n)
			}
		})
	}
}
