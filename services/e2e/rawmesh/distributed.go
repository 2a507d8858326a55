package rawmesh

import (
	"fmt"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Distributed is a mesh with one server. Each mesh service runs in a separate process.
type Distributed struct {
	*stack.Distributed
	// Upstream is the mesh's server.
	Upstream *rawmcp.Server
}

// StartDistributed starts a server with [rawmcp.Tools], and a mesh that consists of six processes. extra is YAML that
// is added at the top level of the configuration, and env contains additional environment variables. The processes are
// killed when the test ends.
func StartDistributed(t *testing.T, policy, extra string, env ...string) *Distributed {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.Tools)
	return &Distributed{Upstream: up, Distributed: stack.StartDistributed(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: policy, Extra: extra,
	}, env...)}
}

// Connect opens a session with the server, as an agent.
func (d *Distributed) Connect(t *testing.T) *stack.Client {
	t.Helper()
	return stack.Connect(t, d.MCP("raw"), stack.AgentToken)
}

// Records returns the journal's records. It reads them over gRPC with the operator's token.
func (d *Distributed) Records(t *testing.T) []*gatewayv1.Record {
	t.Helper()
	conn := d.DialWithToken(t, authv1.Role_ROLE_GATEWAY, stack.OperatorToken)
	return stack.ListRecords(stack.TimeoutContext(t), t, gatewayv1.NewGatewayServiceClient(conn))
}
