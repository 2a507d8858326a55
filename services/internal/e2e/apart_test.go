package e2e_test

import (
	"fmt"
	"testing"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/internal/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
)

const (
	gatewayRole   = authv1.Role_ROLE_GATEWAY
	policyRole    = authv1.Role_ROLE_POLICY
	ratelimitRole = authv1.Role_ROLE_RATELIMIT
	approvalRole  = authv1.Role_ROLE_APPROVAL
	wasmagentRole = authv1.Role_ROLE_WASMAGENT
)

// apart is a mesh of five processes in front of a server that keeps every byte.
type apart struct {
	*stack.Apart
	up *rawmcp.Server
}

func newApart(t *testing.T, policy, extra string, env ...string) *apart {
	t.Helper()
	up := rawmcp.Start(t, tools)
	return &apart{up: up, Apart: stack.StartApart(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: policy, Extra: extra,
	}, env...)}
}

func (a *apart) connect(t *testing.T) *stack.Client {
	t.Helper()
	return stack.Connect(t, a.MCP("raw"), stack.AgentToken)
}

// records returns the journal's records over gRPC, as an operator sees them.
func (a *apart) records(t *testing.T) []*gatewayv1.Record {
	t.Helper()
	conn := a.Person(t, gatewayRole, stack.OperatorToken)
	resp, err := gatewayv1.NewGatewayServiceClient(conn).ListDecisions(stack.Soon(t), &gatewayv1.ListDecisionsRequest{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetRecords()
}

// recorded returns the code of a decision's record, and whether there is one.
func recorded(records []*gatewayv1.Record, id string, kind gatewayv1.RecordKind) bool {
	for _, r := range records {
		if r.GetDecisionId() == id && r.GetKind() == kind {
			return true
		}
	}
	return false
}

func TestACallThroughRolesThatLiveApart(t *testing.T) {
	t.Parallel()
	a := newApart(t, storyPolicy, "")
	c := a.connect(t)
	if resp := c.Call("safe", `{"x":9007199254740993}`); resp.IsError(t) || resp.Text(t) != "ran" {
		t.Errorf("allowed: %d %s", resp.Status, resp.Body)
	}
	if calls := a.up.Calls("safe"); len(calls) != 1 {
		t.Errorf("%d calls reached the server, want 1", len(calls))
	}
	denied := c.Call("danger", "{}").Decision(t)
	if denied.Code != "denied_by_rule" || len(a.up.Calls("danger")) != 0 {
		t.Errorf("denied: %+v, %d calls reached the server", denied, len(a.up.Calls("danger")))
	}
	for i := range 10 {
		if resp := c.Call("limited", "{}"); resp.IsError(t) {
			t.Fatalf("call %d of 10 was refused: %s", i, resp.Body)
		}
	}
	limited := c.Call("limited", "{}").Decision(t)
	if limited.Code != "rate_limited" || limited.RetryAfterMs <= 0 || len(a.up.Calls("limited")) != 10 {
		t.Errorf("limited: %+v, %d calls reached the server", limited, len(a.up.Calls("limited")))
	}
	if resp := c.Post(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`); resp.ErrorCode(t) != 0 {
		t.Errorf("list: %s", resp.Body)
	}
	records := a.records(t)
	for _, id := range []string{denied.ID, limited.ID} {
		if !recorded(records, id, gatewayv1.RecordKind_RECORD_KIND_REFUSAL) {
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
	for _, role := range stack.Roles() {
		begin := time.Now()
		if err := a.Stop(t, role); err != nil {
			t.Errorf("%s stopped with %v:\n%s", role, err, a.Log(role))
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s took %v to stop", role, took)
		}
	}
}
