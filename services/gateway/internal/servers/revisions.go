package servers

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// RenewAfter is the minimum age of a discovery that the gateway renews because a client uses a tool or header that the
// discovery does not contain. The server might have changed.
const RenewAfter = 30 * time.Second

// Stateless reports whether the server supports revision 2026-07-28, which has no sessions. known is false if the
// gateway has not found this out yet.
func (s *Server) Stateless() (speaks, known bool) {
	newest := s.revisions[mcp.Modern]
	if newest != nil && newest.SpeaksRevision() {
		newest.RefreshInBackground(discovery.Fresh)
		return true, true
	}
	return false, newest == nil || newest.RefusedRevision() || newest.TimedOut() && hasSessions(s.own.Last())
}

// AskStateless asks the server whether it supports revision 2026-07-28. It returns an error if the server gives no
// usable answer. When ctx is done, AskStateless returns, but the request to the server continues for other callers.
func (s *Server) AskStateless(ctx context.Context) (speaks bool, err error) {
	newest := s.revisions[mcp.Modern]
	newest.RefreshInBackground(discovery.Fresh)
	_, err = newest.Get(ctx, discovery.Fresh)
	hangs := errors.Is(err, upstream.ErrTimeout) && hasSessions(s.own.Last())
	switch {
	case err == nil || newest.SpeaksRevision():
		return true, nil
	case errors.Is(err, upstream.ErrRevision) || hangs:
		return false, nil
	default:
		return false, err
	}
}

// hasSessions reports whether a recent discovery has found that the server supports a revision that uses sessions.
func hasSessions(found *discovery.Result) bool {
	return found != nil && found.Version != mcp.Modern && time.Since(found.At) <= discovery.Fresh
}

// IsStateless reports whether the server is known to support only revision 2026-07-28.
func (s *Server) IsStateless() bool {
	found := s.own.Last()
	return found != nil && found.Version == mcp.Modern
}

// Versions returns the revisions that the server is known to support, newest first. It returns nil if no revision is
// known.
func (s *Server) Versions() (out []string) {
	if newest := s.revisions[mcp.Modern]; newest != nil && newest.SpeaksRevision() {
		out = append(out, mcp.Modern)
	}
	if found := s.own.Last(); found != nil && !slices.Contains(out, found.Version) {
		out = append(out, found.Version)
	}
	return out
}

// Open opens a session with the server. If the server is stateless, the gateway itself provides the session.
func (s *Server) Open(ctx context.Context, caller principal.Key, initialize upstream.GatewayMessage, memory *limits.Memory) (*upstream.Session, upstream.Answer, error) {
	known := s.own.Last() // read before the request, because the request can change it
	if known != nil && known.Version == mcp.Modern {
		s.own.RefreshInBackground(RenewAfter) // the server might support sessions by now
		return s.Upstream.Bridge(ctx, caller, initialize, memory)
	}
	up, answer, err := s.Upstream.Open(ctx, caller, initialize, memory)
	if known != nil || !s.Upstream.CanBeModern() || !answer.IsUnknownRequest() {
		return up, answer, err
	}
	if found, unknown := s.own.Get(ctx, discovery.Fresh); unknown != nil || found.Version != mcp.Modern {
		return up, answer, err
	}
	if err == nil {
		_ = up.Close(ctx) // an error has no effect, because the session is not used
	}
	memory.Settle(0)
	return s.Upstream.Bridge(ctx, caller, initialize, memory)
}

// Greeting returns the result of a discovery in the form of an answer to initialize.
func Greeting(found *discovery.Result) (*jsonrpc.Answer, error) {
	if found.Version != mcp.Modern {
		return found.Greeting, nil
	}
	return upstream.Greeting(found.Greeting, mcp.Supported()[0], []byte("0"))
}
