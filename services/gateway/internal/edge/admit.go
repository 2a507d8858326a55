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
	"github.com/sluice-mesh/sluice/services/internal/door"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Server returns an HTTP server of the edge.
func (e *Edge) Server() *http.Server { return e.front.HTTP(e.Handler()) }

// Listen bounds the connections of a listener: those of strangers, for each address, and those of each caller.
func (e *Edge) Listen(lis net.Listener) (*door.Listener, error) { return e.front.Listen(lis) }

// keyOf is the key of a caller's session with a server.
func keyOf(c httpserver.Caller, server string) session.Key {
	return session.Key{Key: principal.Of(c.Principal), Server: server}
}

// identified lets only agents with a live token through.
func (e *Edge) identified(next func(http.ResponseWriter, *http.Request, httpserver.Caller)) http.HandlerFunc {
	return e.front.Authenticated(next, func(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
		e.refuseHTTP(w, r, c, refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, "this caller has too many connections; close some of them."))
	})
}

// panicked logs a panic, which ends what it came of and nothing else.
func (e *Edge) panicked(ctx context.Context, what any) {
	e.deps.Log.ErrorContext(ctx, "request panicked", "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
}
