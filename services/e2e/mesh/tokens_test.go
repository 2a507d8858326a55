package mesh_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Case I1. A token is used at two gateways while it is revoked, three times. The second gateway is first connected, then
// suspended, and last without a connection to the policy service. No call with the token reaches the server after the
// acknowledgement, which comes within 2 s. Then both gateways refuse the token: with 401, or with policy_unavailable
// without a connection.
func TestTokens_NoCallBeginsAfterTheRevocation(t *testing.T) {
	t.Parallel()
	c := newStopTest(t)
	identity := identityv1.NewIdentityServiceClient(c.gateways[0].DialWithToken(t, policyRole, stack.OperatorToken))
	for n, disturbance := range []int{0, 9, 4} {
		name := []string{"t0", "t1", "t2"}[n]
		made, err := identity.CreateToken(t.Context(), &identityv1.CreateTokenRequest{Token: &identityv1.Token{
			Name: name, Tenant: "default", Subject: name, Agent: "cursor", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Expires: timestamppb.New(time.Now().Add(time.Hour)),
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var callers sync.WaitGroup
		for _, g := range c.gateways {
			for range stopCallers {
				callers.Go(func() { c.callTool(ctx, g, made.GetSecret()) })
			}
		}
		c.await("calls run", &c.ran, 50)
		end := c.disturb(disturbance)
		requested := time.Now()
		_, err = identity.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Name: name})
		acknowledged := time.Now()
		if err != nil {
			t.Fatal(err)
		}
		if took := acknowledged.Sub(requested); took > 2*time.Second {
			t.Errorf("revocation %d was acknowledged after %v", n, took)
		}
		connected := disturbance != 4 // the test ends before it would be connected again
		if connected {
			end()
		}
		for i, g := range c.gateways {
			eventually.Holds(t, "the gateway refuses the token", func() bool {
				resp, err := stack.NewClient(nil, g.MCP("echo"), made.GetSecret()).TryPost([]byte(stack.InitializeRequest))
				return err == nil && (resp.Status == 401 || i == 1 && !connected && bytes.Contains(resp.Body, []byte(`"code":"policy_unavailable"`)))
			})
			t.Logf("revocation %d is in force at gateway %d %v after its acknowledgement", n, i, time.Since(acknowledged).Round(time.Millisecond))
		}
		stop()
		callers.Wait()
		c.mu.Lock()
		if last := slices.MaxFunc(c.arrivals, time.Time.Compare); last.After(acknowledged) {
			t.Errorf("revocation %d: a call reached the server %v after the acknowledgement", n, last.Sub(acknowledged))
		}
		c.mu.Unlock()
	}
}
