package edge

import (
	"context"
	"fmt"
	"regexp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// serverName is the grammar of configured names. No server has another name, so policy is not asked about one.
var serverName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// isAbsent reports whether a caller is to be answered that a server does not exist: because none of this name is
// configured, or because policy hides it from the caller. Both take the same steps, so that no time tells them apart.
func (e *Edge) isAbsent(ctx context.Context, c httpserver.Caller, server string) bool {
	if !serverName.MatchString(server) {
		return true
	}
	hidden := e.reach.Hides(ctx, c.Principal, server, c.Stale)
	_, configured := e.targets[server]
	return hidden || !configured
}

// unknownServer rejects a request to a server that is absent for its caller.
func unknownServer(name string) *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_TOOL_UNKNOWN, fmt.Sprintf("no server %q is configured here, or policy hides it from this caller.", spans.Clip(name)))
}
