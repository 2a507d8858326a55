package edge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// HTTPServer returns an HTTP server of the edge.
func (e *Edge) HTTPServer() *http.Server { return e.front.HTTP(e.Handler()) }

// Listen returns a listener that limits the connections of lis: unauthenticated ones for each address, and the others
// for each caller.
func (e *Edge) Listen(lis net.Listener) (*connlimit.Listener, error) { return e.front.Listen(lis) }

// keyOf returns the key of a caller's session with a server.
func keyOf(c httpserver.Caller, server string) session.Key {
	return session.Key{Key: principal.Of(c.Principal), Server: server}
}

// identified returns a handler that calls next only for an agent with a valid token.
func (e *Edge) identified(next func(http.ResponseWriter, *http.Request, httpserver.Caller)) http.HandlerFunc {
	return e.front.Authenticated(next, func(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
		e.refuseHTTP(w, r, c, refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, "this caller has too many connections; close some of them."))
	})
}

// panicked logs a panic that was recovered, so that it ends only the message that caused it.
func (e *Edge) panicked(ctx context.Context, what any) {
	e.deps.Log.ErrorContext(ctx, "request panicked", "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
}
