// Package rawmesh starts a mesh with one server of package rawmcp. The server's name in the configuration is "raw", and
// it records every message that it receives.
package rawmesh

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// StoryPolicy has a rule for each kind of decision. Each rule applies to one of the tools in [rawmcp.Tools].
const StoryPolicy = `version: 1
name: story
server: raw
default: deny
tools:
  safe: {action: allow}
  danger: {action: deny, reason: ask a person}
  secret: {action: hide}
  pay: {action: require_approval}
  limited: {rate_limit: {max: 10, window: 60}}
`

// PayPolicy is a policy for [rawmcp.Tools] that allows the tool `safe`. The tools `pay` and `limited` need an approval,
// and `limited` also has a rate limit of one call per minute.
const PayPolicy = `version: 1
name: story
server: raw
default: deny
tools:
  safe: {action: allow}
  pay: {action: require_approval, reason: money moves}
  limited: {action: require_approval, rate_limit: {max: 1, window: 60}}
`

// Mesh is a mesh with one server.
type Mesh struct {
	*stack.Stack
	// Upstream is the server behind the mesh.
	Upstream *rawmcp.Server
}

// Start starts a mesh in this process and a server with [rawmcp.Tools]. extra contains additional YAML for the top
// level of the configuration, or is empty. The mesh and the server are stopped when the test ends.
func Start(t *testing.T, policy, extra string) *Mesh {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.Tools)
	return &Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: policy, Extra: extra,
	})}
}

// StartUnpinned is like [Start], but the definitions of the server's tools may change without an operator's consent.
// The server initially lists the given tools, or [rawmcp.Tools] if none are given.
func StartUnpinned(t *testing.T, policy, extra string, first ...string) *Mesh {
	t.Helper()
	up := rawmcp.Start(t, cmp.Or(strings.Join(first, ","), rawmcp.Tools))
	return &Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}, pin: \"off\"}", up.URL), Policy: policy, Extra: extra,
	})}
}

// Connect opens a session with the server, as an agent.
func (m *Mesh) Connect(t *testing.T) *stack.Client {
	t.Helper()
	return stack.Connect(t, m.MCP("raw"), stack.AgentToken)
}

// Records returns the records of the journal, read over gRPC with the operator's token.
func (m *Mesh) Records(t *testing.T) []*gatewayv1.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return stack.ListRecords(ctx, t, gatewayv1.NewGatewayServiceClient(m.Operator(t)))
}
