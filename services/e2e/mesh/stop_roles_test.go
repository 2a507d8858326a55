package mesh_test

import (
	"fmt"
	"syscall"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// The program of a mesh service receives SIGTERM. It finishes the call in flight and exits with status 0, as
// orchestrators expect. The test runs gateways with and without agents.
func TestStop_RoleProgramExitsWithZeroAfterSIGTERM(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{
		"without agents":               "",
		"with agents":                  "\n  agents: {grpc: {target: wasmagent}}",
		"with agents and another gRPC": "\n  agents: {grpc: {target: wasmagent}}\n  other: {grpc: {target: \"127.0.0.1:1\", plaintext: true}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up, arrived, release := holdingServer(t)
			a := stack.StartDistributed(t, stack.Options{Servers: fmt.Sprintf("  up: {http: {url: %q}}", up.URL) + more, Policy: stack.OpenPolicy})
			client := stack.Connect(t, a.MCP("up"), stack.AgentToken)
			answer := make(chan heldResult, 1)
			go func() {
				resp, err := client.TryPost([]byte(stack.CallRequest(`{"name":"safe"}`)))
				answer <- heldResult{resp, err}
			}()
			eventually.Holds(t, "the call reaches its server", func() bool { return isClosed(arrived) })
			a.Signal(t, gatewayRole, syscall.SIGTERM)
			eventually.Holds(t, "the stopping gateway takes no new connections", func() bool {
				_, err := stack.NewClient(t, a.MCP("up"), stack.AgentToken).TryPost([]byte("{}"))
				return err != nil
			})
			close(release)
			if got := <-answer; got.err != nil || got.resp.Text(t) != "late" {
				t.Errorf("the caller received %q, %v", got.resp.Body, got.err)
			}
			if err := a.Wait(gatewayRole); err != nil {
				t.Errorf("the gateway ended with %v, want exit status 0\n%s", err, a.Log(gatewayRole))
			}
			for _, role := range []authv1.Role{wasmagentRole, approvalRole, ratelimitRole, policyRole, identityRole} {
				if err := a.Stop(t, role); err != nil {
					t.Errorf("%s ended with %v, want exit status 0\n%s", role, err, a.Log(role))
				}
			}
		})
	}
}
