package mcpserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/lru"
)

// These errors are returned by [Server.Do]. Compare with errors.Is.
var (
	// ErrServer means that no server with the requested name is configured, or that the policy hides the server from
	// the caller.
	ErrServer = errors.New("no such server is configured, or policy hides it from the caller")
	// ErrStopping means that the gateway is shutting down.
	ErrStopping = errors.New("the gateway is stopping")
	// ErrSession means that the session with the server was lost twice, first during the request, and then during the
	// retry.
	ErrSession = errors.New("the session with the server was lost, and was lost again after a retry")
)

const (
	// initialize is the request that the gateway uses to open a session for a mesh service that makes calls on behalf
	// of a principal. initialized is the notification that completes the initialization.
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"sluice-agent","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	// maxSessionIDs limits how many session ids are stored. There is one session for each pair of principal and server
	// for which a mesh service makes calls.
	maxSessionIDs = 10_000
)

// Request is a request that a mesh service makes on behalf of a principal.
type Request struct {
	// Principal is the principal on whose behalf the service sends the request. It is never nil.
	Principal *identityv1.Principal
	// Server is the configured name of the server.
	Server string
	// Message is the request as an MCP client would send it. It is parsed as strictly as a client's request.
	Message []byte
	// Hold is how long the request is held while it waits for approvers. If Hold is nil, the configured time applies.
	Hold *time.Duration
	// Event is called for each message that the server sends before its answer, one message at a time. It may be nil.
	Event func(message []byte)
}

// Response is the outcome of a [Request].
type Response struct {
	// Answer is the JSON-RPC response that an MCP client would have received.
	Answer []byte
	// Refusal is the refusal of the request, or nil if the server has answered.
	Refusal *refusal.Refusal
	// TooLarge is true if the server's answer was larger than 7 MiB. In that case, Answer is empty.
	TooLarge bool
	// ID is the id of the recorded decision. It is empty if the call has not reached the pipeline. Decision is the
	// policy service's decision on the call, or nil if there is none.
	ID       string
	Decision *policyv1.Decision
	// Approved is true if a person has approved this particular call.
	Approved bool
}

// Do executes a request on behalf of a principal. The gateway handles the request like a request from an MCP client,
// with the same quotas, in the principal's session with the server. Do returns [ErrServer], [ErrStopping] or
// [ErrSession].
func (s *Server) Do(ctx context.Context, req Request) (Response, error) {
	c := httpserver.Caller{Principal: req.Principal, Credential: authn.InProcess{}}
	if !authn.MayUse(req.Principal, req.Server) || s.IsAbsent(ctx, c, req.Server) {
		return Response{}, ErrServer
	}
	return s.do(ctx, c, req, s.NewRequest)
}

// newRequest is a function that returns the request for a message to a server, as [protocol.Router.NewRequest] does.
type newRequest func(ctx context.Context, c httpserver.Caller, server string, header http.Header, to dispatch.Sink) *protocol.Request

// do executes a request in the principal's session with the server. The caller must have checked that the server exists
// and is not hidden from the principal.
func (s *Server) do(ctx context.Context, c httpserver.Caller, req Request, newRequest newRequest) (Response, error) {
	if !s.Background.Begin() {
		return Response{}, ErrStopping
	}
	defer s.Background.Done()
	send := func(sessionID, message string) protocol.InternalResponse {
		x := newRequest(ctx, c, req.Server, sessionHeader(sessionID), dispatch.NewCallback(req.Event))
		x.Hold = req.Hold
		return x.Do([]byte(message))
	}
	key := protocol.SessionKey(c, req.Server)
	lost := ""
	for range 2 {
		sessionID, known := s.sessionIDs.Get(key)
		if !known || sessionID == lost { // no session was opened yet, or the session was closed because it was idle
			opened := send("", initialize)
			if sessionID = opened.Session; sessionID == "" {
				return responseOf(opened), nil
			}
			send(sessionID, initialized)
			if sess, done, err := s.Sessions.Use(sessionID, key); err == nil {
				if sess.Ready.Load() { // if the session is not ready, the next call opens another one
					s.sessionIDs.Put(key, sessionID)
				}
				done()
			}
		}
		response := send(sessionID, string(req.Message))
		if response.Refusal == nil || response.Refusal.Code != commonv1.Code_CODE_SESSION_UNKNOWN {
			return responseOf(response), nil
		}
		lost = sessionID
	}
	return Response{}, ErrSession
}

// sessionHeader returns the HTTP headers of a message. If sessionID is empty, the message belongs to no session.
func sessionHeader(sessionID string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if sessionID != "" {
		h[mcp.HeaderSession] = []string{sessionID}
	}
	return h
}

func responseOf(a protocol.InternalResponse) Response {
	return Response{Answer: a.Joined, TooLarge: a.TooLarge, Refusal: a.Refusal, ID: a.ID, Decision: a.Decision, Approved: a.Approved}
}

func newSessionIDs() *lru.Cache[session.Key, string] {
	return lru.New[session.Key](maxSessionIDs, maxSessionIDs, func(string) int { return 1 })
}

// Drain makes later calls to [Server.Do] return [ErrStopping]. It then waits until all requests of [Server.Do] and all
// calls of tasks that are in flight have ended, or until ctx is done.
func (s *Server) Drain(ctx context.Context) { s.Background.Drain(ctx) }
