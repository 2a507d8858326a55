package mcpserver

import (
	"net"
	"net/http"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
)

// HTTPServer returns an HTTP server that serves [Server.Handler].
func (s *Server) HTTPServer() *http.Server { return s.http.HTTP(s.Handler()) }

// Listen returns a listener that limits the connections that lis accepts. It limits the unauthenticated connections of
// each IP address and the authenticated connections of each caller.
func (s *Server) Listen(lis net.Listener) (*connlimit.Listener, error) { return s.http.Listen(lis) }

// authenticated returns a handler that calls next only for an agent with a valid token. It refuses all other requests.
func (s *Server) authenticated(next func(http.ResponseWriter, *http.Request, httpserver.Caller)) http.HandlerFunc {
	return s.http.Authenticated(next, func(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
		s.refuseHTTP(w, r, c, refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, "this caller has too many connections; close some of them."))
	})
}
