package mesh_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const (
	gatewayRole   = authv1.Role_ROLE_GATEWAY
	identityRole  = authv1.Role_ROLE_IDENTITY
	policyRole    = authv1.Role_ROLE_POLICY
	ratelimitRole = authv1.Role_ROLE_RATELIMIT
	approvalRole  = authv1.Role_ROLE_APPROVAL
	wasmagentRole = authv1.Role_ROLE_WASMAGENT
)

// hasRecord reports whether the records contain a record of the given kind for the decision id.
func hasRecord(records []*gatewayv1.Record, id string, kind gatewayv1.RecordKind) bool {
	for _, r := range records {
		if r.GetDecisionId() == id && r.GetKind() == kind {
			return true
		}
	}
	return false
}

func TestDistributed_CallsAreDecidedAndRecorded(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, "")
	c := a.Connect(t)
	if resp := c.Call("safe", `{"x":9007199254740993}`); resp.IsError(t) || resp.Text(t) != "ran" {
		t.Errorf("allowed: %d %s", resp.Status, resp.Body)
	}
	if calls := a.Upstream.Calls("safe"); len(calls) != 1 {
		t.Errorf("%d calls reached the server, want 1", len(calls))
	}
	denied := c.Call("danger", "{}").Decision(t)
	if denied.Code != "denied_by_rule" || len(a.Upstream.Calls("danger")) != 0 {
		t.Errorf("denied: %+v, %d calls reached the server", denied, len(a.Upstream.Calls("danger")))
	}
	for i := range 10 {
		if resp := c.Call("limited", "{}"); resp.IsError(t) {
			t.Fatalf("call %d of 10 was refused: %s", i, resp.Body)
		}
	}
	limited := c.Call("limited", "{}").Decision(t)
	if limited.Code != "rate_limited" || limited.RetryAfterMs <= 0 || len(a.Upstream.Calls("limited")) != 10 {
		t.Errorf("limited: %+v, %d calls reached the server", limited, len(a.Upstream.Calls("limited")))
	}
	if resp := c.Post(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); resp.ErrorCode(t) != 0 {
		t.Errorf("list: %s", resp.Body)
	}
	records := a.Records(t)
	for _, id := range []string{denied.ID, limited.ID} {
		if !hasRecord(records, id, gatewayv1.RecordKind_RECORD_KIND_REFUSAL) {
			t.Errorf("no record of the refusal %q", id)
		}
	}
	kinds := make(map[gatewayv1.RecordKind]int)
	for _, r := range records {
		kinds[r.GetKind()]++
	}
	if kinds[gatewayv1.RecordKind_RECORD_KIND_INTENT] != 11 || kinds[gatewayv1.RecordKind_RECORD_KIND_OUTCOME] != 11 {
		t.Errorf("the journal has %v, want 11 intents and as many outcomes", kinds)
	}
	for _, role := range authn.Roles() {
		begin := time.Now()
		if err := a.Stop(t, role); err != nil {
			t.Errorf("%s stopped with %v:\n%s", role, err, a.Log(role))
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("%s took %v to stop", role, took)
		}
	}
}

// refusalTimeLimit is the maximum time until a call is refused while a mesh service is unavailable: about a second, and
// 9 s more for a busy machine.
const refusalTimeLimit = 10 * time.Second

// checkRefusedInTime calls a tool and checks that it is refused with this code within refusalTimeLimit.
func checkRefusedInTime(t *testing.T, c *stack.Client, tool, code string) {
	t.Helper()
	begin := time.Now()
	resp := c.Call(tool, "{}")
	if took := time.Since(begin); took > refusalTimeLimit {
		t.Errorf("the refusal took %v", took)
	}
	if resp.Status != http.StatusOK || !resp.IsError(t) || resp.Decision(t).Code != code {
		t.Errorf("%s: %d %s, want a result with the code %s", tool, resp.Status, resp.Body, code)
	}
}

// awaitCallPasses repeats a call to a tool until the call succeeds.
func awaitCallPasses(t *testing.T, c *stack.Client, tool string) {
	t.Helper()
	eventually.Holds(t, tool+" passes", func() bool {
		resp := c.Call(tool, "{}")
		return resp.Status == http.StatusOK && !resp.IsError(t)
	})
}

// awaitNotReady waits until /readyz responds with status 503 and the reason in the parameter why.
func awaitNotReady(t *testing.T, a *rawmesh.Distributed, why string) {
	t.Helper()
	eventually.Holds(t, "/readyz says "+why, func() bool {
		status, text := a.Ready(t)
		return status == http.StatusServiceUnavailable && strings.Contains(text, why)
	})
}

func TestDistributed_EveryCallIsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, "")
	c := a.Connect(t)
	awaitCallPasses(t, c, "safe")

	a.Kill(t, policyRole)
	awaitLeaseExpiry(t)
	sent := len(a.Upstream.Calls())
	for range 3 { // at once, after the time-out, and after cached tokens have expired
		for _, tool := range []string{"safe", "danger", "limited", "secret"} {
			checkRefusedInTime(t, c, tool, "policy_unavailable")
		}
		awaitNotReady(t, a, "the policy service is unavailable")
	}
	if n := len(a.Upstream.Calls()); n != sent {
		t.Errorf("%d calls reached the server without policy", n-sent)
	}

	a.Start(t, policyRole)
	a.AwaitReady(t)
	awaitCallPasses(t, c, "safe")
	if d := c.Call("danger", "{}").Decision(t); d.Code != "denied_by_rule" {
		t.Errorf("danger: %+v", d)
	}
}

func TestDistributed_EveryCallIsRefusedWithoutIdentity(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, "")
	c := a.Connect(t)
	awaitCallPasses(t, c, "safe")

	a.Kill(t, identityRole)
	awaitLeaseExpiry(t)
	sent := len(a.Upstream.Calls())
	for range 3 { // at once, and after the time-out
		for _, tool := range []string{"safe", "danger", "limited", "secret"} {
			checkRefusedInTime(t, c, tool, "policy_unavailable")
		}
		awaitNotReady(t, a, "the identity service does not answer")
	}
	if resp := stack.NewClient(t, a.MCP("raw"), "a-token-that-nobody-knows-0123456789").Call("safe", "{}"); resp.Status != http.StatusServiceUnavailable {
		t.Errorf("an unknown token, while tokens can't be checked: %d %s", resp.Status, resp.Body)
	}
	if n := len(a.Upstream.Calls()); n != sent {
		t.Errorf("%d calls reached the server although no token was known to be valid", n-sent)
	}

	a.Start(t, identityRole)
	a.AwaitReady(t)
	awaitCallPasses(t, c, "safe")
}

// awaitLeaseExpiry waits until cached decisions have expired.
func awaitLeaseExpiry(t *testing.T) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(1100 * time.Millisecond):
	}
}

func TestDistributed_OnlyLimitedCallsAreRefusedWithoutTheLimiter(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, "")
	c := a.Connect(t)
	awaitCallPasses(t, c, "limited")
	sent := len(a.Upstream.Calls("limited"))

	a.Kill(t, ratelimitRole)
	for range 3 {
		checkRefusedInTime(t, c, "limited", "limiter_unavailable")
		if resp := c.Call("safe", "{}"); resp.IsError(t) {
			t.Errorf("a call without a limit was refused: %s", resp.Body)
		}
		awaitDegraded(t, a, "the ratelimit service is unavailable")
	}
	if n := len(a.Upstream.Calls("limited")); n != sent {
		t.Errorf("%d limited calls reached the server without the limiter", n-sent)
	}

	a.Start(t, ratelimitRole)
	a.AwaitReady(t)
	awaitCallPasses(t, c, "limited")
}

// A mesh service that hangs is treated as unavailable: calls that need it are refused.
func TestDistributed_CallsAreRefusedWhileARoleHangs(t *testing.T) {
	t.Parallel()
	a := rawmesh.StartDistributed(t, rawmesh.StoryPolicy, "")
	c := a.Connect(t)
	awaitCallPasses(t, c, "limited")
	sent := len(a.Upstream.Calls())
	for role, code := range map[authv1.Role]string{ratelimitRole: "limiter_unavailable", policyRole: "policy_unavailable"} {
		a.Signal(t, role, stack.SIGSTOP)
		if role == policyRole {
			awaitLeaseExpiry(t)
		}
		checkRefusedInTime(t, c, "limited", code)
		awaitUnavailable(t, a, role)
		checkRefusedInTime(t, c, "limited", code)
		a.Signal(t, role, stack.SIGCONT)
		a.AwaitReady(t)
	}
	if n := len(a.Upstream.Calls()); n != sent {
		t.Errorf("%d calls reached the server", n-sent)
	}
	awaitCallPasses(t, c, "limited")
}
