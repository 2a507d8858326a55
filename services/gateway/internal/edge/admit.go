package edge

import (
	"net"
	"net/http"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
)

// HTTPServer returns an HTTP server of the edge.
func (e *Edge) HTTPServer() *http.Server { return e.http.HTTP(e.Handler()) }

// Listen returns a listener that limits the connections of lis: unauthenticated ones for each address, and the others
// for each caller.
func (e *Edge) Listen(lis net.Listener) (*connlimit.Listener, error) { return e.http.Listen(lis) }

// identified returns a handler that calls next only for an agent with a valid token.
func (e *Edge) identified(next func(http.ResponseWriter, *http.Request, httpserver.Caller)) http.HandlerFunc {
	return e.http.Authenticated(next, func(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
		e.refuseHTTP(w, r, c, refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, "this caller has too many connections; close some of them."))
	})
}
