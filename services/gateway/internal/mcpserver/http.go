package mcpserver

import (
	"net/http"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	v2025 "github.com/sluice-mesh/sluice/services/gateway/internal/protocol/v2025"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
)

func (s *Server) post(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
	to := sse.NewWriter(w, r.Header)
	x := s.request(r, c, to)
	var resp dispatch.Response
	defer func() { x.End(resp) }()
	resp = x.Serve(r.Body, r.ContentLength)
	if s.http.StepsUp(c, resp.Refusal) && !to.IsOpen() {
		resp = s.stepUp(w, r, c, x, resp)
	}
	to.Answer(resp)
}

// stepUp returns the response to a call that was refused because its token lacks a scope. The response has the status
// 403 and a challenge, so that the client signs in again with the scopes that the call needs. The body is a JSON-RPC
// error, because the client does not treat a response with this status as the result of the call.
func (s *Server) stepUp(w http.ResponseWriter, r *http.Request, c httpserver.Caller, x *protocol.Request, resp dispatch.Response) dispatch.Response {
	body, err := resp.Refusal.Error(x.ID(), resp.Refusal.RPCCode())
	if err != nil {
		s.deps.Log.ErrorContext(r.Context(), "answer could not be encoded", "error", err)
		return resp
	}
	w.Header().Set("WWW-Authenticate", s.http.ScopeChallenge(r, c, resp.Refusal.Scopes.Needed))
	resp.Body, resp.Status = [][]byte{body}, http.StatusForbidden
	return resp
}

func (s *Server) request(r *http.Request, c httpserver.Caller, to dispatch.Sink) *protocol.Request {
	x := s.NewRequest(r.Context(), c, r.PathValue("server"), r.Header, to)
	x.Cleanup = &x.OwnCleanup
	return x
}

// refuseHTTP refuses an HTTP request from an authenticated caller without reading a message from the request. It
// records the refusal and sends it as the response.
func (s *Server) refuseHTTP(w http.ResponseWriter, r *http.Request, c httpserver.Caller, refused *refusal.Refusal) {
	to := sse.NewWriter(w, nil)
	to.Answer(s.request(r, c, to).Refuse(r.Context(), refused))
}

// listen opens a session's stream for those server messages that do not belong to a request (MCP 2025-11-25,
// Transports, Listening for Messages from the Server). A session has at most one stream of this kind. A client that has
// lost the stream can open a new one, which continues after the last event that the client has received.
func (s *Server) listen(w http.ResponseWriter, r *http.Request, c httpserver.Caller) {
	to := sse.NewWriter(w, r.Header)
	x := s.request(r, c, to)
	x.Message, x.Received = new(jsonrpc.Message), time.Now()
	m := v2025.New(x)
	x.SetProtocol(m)
	defer func() { x.End(dispatch.Response{}) }()
	resp, exists := m.Listen(r.Method)
	if !exists {
		s.notAllowed(w, r)
		return
	}
	to.Answer(resp)
}
