package protocol

import (
	"context"
	"fmt"
	"regexp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// serverName matches the names that a configured server can have. The gateway asks the policy service only about such
// names.
var serverName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// IsAbsent reports whether the gateway must answer that the server does not exist. This is the case if no server with
// this name is configured, or if the policy hides the server from the caller. IsAbsent takes the same steps in both
// cases, so that the response time does not reveal a hidden server.
func (f *Router) IsAbsent(ctx context.Context, c httpserver.Caller, server string) bool {
	return f.isAbsent(ctx, c, server, f.Servers)
}

func (f *Router) isAbsent(ctx context.Context, c httpserver.Caller, server string, reachable map[string]*servers.Server) bool {
	if !serverName.MatchString(server) {
		return true
	}
	hidden := f.Visibility.IsHidden(ctx, c.Principal, server, c.Stale)
	_, configured := reachable[server]
	return hidden || !configured
}

func unknownServer(name string) *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_TOOL_UNKNOWN, fmt.Sprintf("no server %q is configured here, or policy hides it from this caller.", spans.Clip(name)))
}
