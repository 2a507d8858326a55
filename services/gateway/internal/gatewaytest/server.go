package gatewaytest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// A [Server] returns these results. The revisions that it supports determine whether it returns Initialized or
// Discovered.
const (
	// Initialized is the result of initialize.
	Initialized = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"x","version":"1"}}`
	// Discovered is the result of server/discover.
	Discovered = `{"supportedVersions":["2027-01-01","2026-07-28"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"tasks":{}},"instructions":"i","resultType":"complete","ttlMs":60000,"cacheScope":"public"}`
	// Tools is a server's tool list. Calls to the tool "region" must repeat the argument "r" in a header.
	Tools = `{"tools":[{"name":"safe","inputSchema":{"type":"object"}},{"name":"pay","inputSchema":{"type":"object"}},` +
		`{"name":"region","inputSchema":{"type":"object","properties":{"r":{"type":"string","x-mcp-header":"Region"}}}}]}`
)

// Server is a fake MCP server that records the messages that it receives. A test must set the server's functions before
// it sends messages.
type Server struct {
	// Transport is the name of the transport, which is http, stdio or grpc.
	Transport string
	// ForEachPerson is true if each person uses a separate account of the server.
	ForEachPerson bool
	// Open answers the requests that open clients' sessions.
	Open func(upstream.Request) (upstream.Answer, error)
	// Discovery answers all requests in the gateway's own sessions. If it is nil, the server answers them like clients'
	// requests.
	Discovery func(upstream.Request) (upstream.Answer, error)
	// Request answers requests in clients' sessions. It can call events to send messages before the answer.
	Request func(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error)
	// Listen serves a session's stream. If it is nil, the server has no streams.
	Listen func(ctx context.Context, to upstream.Listener) error
	// NotifyError is the error that a notification to the server returns, or nil.
	NotifyError error

	t        testing.TB
	mu       sync.Mutex
	changed  *sync.Cond
	opened   []upstream.Request
	requests []upstream.Request
	notified []upstream.Request
	closed   int
}

// NewServer returns a server that supports only revisions with sessions. It answers every request.
func NewServer(t testing.TB) *Server {
	s := &Server{Transport: "http", t: t}
	s.changed = sync.NewCond(&s.mu)
	s.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "server/discover" {
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrRevision)
		}
		return Result(r, Initialized), nil
	}
	s.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return Result(r, Tools), nil
		}
		return s.Open(r)
	}
	s.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return Result(r, Tools), nil
		}
		return Result(r, `{"content":[]}`), nil
	}
	return s
}

// NewModernServer returns a server that supports only revision 2026-07-28. It answers every request.
func NewModernServer(t testing.TB) *Server {
	s := NewServer(t)
	s.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "server/discover" {
			return ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
		}
		return Result(r, Discovered), nil
	}
	s.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		switch r.Method() {
		case "server/discover":
			return Result(r, Discovered), nil
		case "tools/list":
			return Result(r, Tools), nil
		default:
			return Result(r, `{"resultType":"complete","content":[]}`), nil
		}
	}
	return s
}

// Result returns an answer to a request. The answer contains the given raw result.
func Result(r upstream.Request, result string) upstream.Answer {
	return Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"result":` + result + `}`)
}

// ErrorAnswer returns an answer to a request. The answer contains the given raw error.
func ErrorAnswer(r upstream.Request, raw string) upstream.Answer {
	return Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":` + raw + `}`)
}

// Raw returns an answer with the given message and status 200. It panics if the message is not valid JSON-RPC.
func Raw(message string) upstream.Answer {
	a, err := jsonrpc.ReadAnswer([]byte(message), jsonrpc.AnswerLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Answer{Message: a, Status: 200}
}

// Respond makes the server answer each client request with the given raw result.
func (s *Server) Respond(result string) {
	s.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		return Result(r, result), nil
	}
}

// Opened returns the requests that have opened clients' sessions.
func (s *Server) Opened() []upstream.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.opened)
}

// Requests returns the bodies of the requests that the server has received in clients' sessions.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return texts(s.requests)
}

// Notified waits until the server has received at least n notifications and responses, and returns their bodies.
func (s *Server) Notified(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.notified) < n {
		s.changed.Wait()
	}
	return texts(s.notified)
}

// Notifications returns the notifications and responses that the server has received, in the form that transports
// receive.
func (s *Server) Notifications() []upstream.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notified)
}

// Forget removes the recorded requests from clients' sessions. Benchmarks call it to release memory.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = s.requests[:0]
}

// Closed returns how many client sessions were closed.
func (s *Server) Closed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func texts(all []upstream.Request) (out []string) {
	for _, r := range all {
		out = append(out, string(r.Body()))
	}
	return out
}

// transport implements [upstream.Transport]. conn implements [upstream.Conn] for clients' sessions.
type (
	transport struct{ *Server }
	conn      struct{ *Server }
)

func (s transport) Kind() string                { return cmp.Or(s.Transport, "http") }
func (transport) ToolsChanged() <-chan struct{} { return nil }
func (transport) Close() error                  { return nil }

func (s transport) Open(_ context.Context, who principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if who.Subject == principal.Catalogue && s.Discovery != nil {
		answer, err := s.Discovery(r)
		return discoveryConn(s), answer, err
	}
	if who.Tenant != Tenant && who.Subject != principal.Catalogue || who.Subject == "" {
		s.t.Errorf("a session was opened for %+v", who)
	}
	s.mu.Lock()
	s.opened = append(s.opened, r)
	s.mu.Unlock()
	answer, err := s.Server.Open(r)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	return conn(s), answer, nil
}

func (c conn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	c.mu.Lock()
	c.requests = append(c.requests, r)
	c.mu.Unlock()
	return c.Server.Request(ctx, r, events)
}

func (c conn) Notify(_ context.Context, r upstream.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = append(c.notified, r)
	c.changed.Broadcast()
	return c.NotifyError
}

func (c conn) Listen(ctx context.Context, to upstream.Listener) error {
	if c.Server.Listen == nil {
		return upstream.ErrNoStream
	}
	return c.Server.Listen(ctx, to)
}

func (c conn) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

// discoveryConn is the server's end of a session that the gateway itself has opened.
type discoveryConn struct{ *Server }

func (c discoveryConn) Request(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	return c.Discovery(r)
}

func (discoveryConn) Notify(context.Context, upstream.Request) error { return nil }

func (discoveryConn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }

func (discoveryConn) Close(context.Context) error { return nil }
