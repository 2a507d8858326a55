package upstream

import (
	"context"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Bridge is like [Server.Open], but opens a session for a client and a server that have no revision in common. For a
// stateless server (revision 2026-07-28), hello is an initialize request. For a server that supports only session-based
// revisions, hello is a server/discover request. Bridge declares only capabilities that it can translate.
func (s *Server) Bridge(ctx context.Context, key principal.Key, hello GatewayMessage, memory *limits.Memory) (*Session, Answer, error) {
	switch first := hello.inTrace(ctx, memory); first.Method() {
	case mcp.MethodInitialize:
		return s.withSessions(ctx, key, first)
	case mcp.MethodDiscover:
		return s.withoutSessions(ctx, key, first)
	default:
		return nil, Answer{}, fmt.Errorf("%w: the message opens no session", ErrNeverSent)
	}
}
