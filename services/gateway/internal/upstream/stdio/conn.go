package stdio

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// cancelGrace is how long an answer is still accepted after the client has cancelled the request. A server that obeys
// the cancellation sends no answer.
const cancelGrace = 2 * time.Second

// conn is a session with the current process of a host.
type conn struct {
	server *transport
	host   *host
	// modern is true if the connection was opened without a session (revision 2026-07-28).
	modern bool
	lines  lineOrder

	mu      sync.Mutex
	closed  bool
	flights map[*flight]struct{}
	// ended is closed when the session is closed.
	ended chan struct{}
}

type flight struct {
	key    string // the id key of the client's request
	cancel context.CancelCauseFunc
	call   *pendingCall // nil until the request is registered with a process
}

func newConn(s *transport, h *host, modern bool) *conn {
	return &conn{server: s, host: h, modern: modern, flights: make(map[*flight]struct{}), ended: make(chan struct{})}
}

// Request implements upstream.Conn.
func (c *conn) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	if req.Kind() != jsonrpc.Request || req.Method() == mcp.MethodInitialize {
		return upstream.Answer{}, fmt.Errorf("%w: the message is not a request, or is initialize", upstream.ErrNeverSent)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flight{key: jsonrpc.IDKey(req.ID()), cancel: cancel}
	if err := c.addFlight(f); err != nil {
		return upstream.Answer{}, err
	}
	defer c.removeFlight(f)
	call, err := c.register(ctx, req.Message, req.Room, events != nil)
	if err != nil {
		return upstream.Answer{}, err
	}
	defer call.proc.recycle()
	c.setCall(f, call)
	call.permit, call.lines = req.Permit, &c.lines
	answer, err := call.proc.do(ctx, call, events)
	return upstream.Answer{Message: answer}, err
}

// register registers a request with the current process. It does not send the request.
func (c *conn) register(ctx context.Context, m *jsonrpc.Message, memory *limits.Memory, events bool) (*pendingCall, error) {
	for {
		p, err := c.process(ctx)
		if err != nil {
			return nil, err
		}
		if call := p.register(m, memory, events); call != nil {
			return call, nil
		} // if call is nil, the process was just retired, and register waits for the next process
	}
}

// Notify implements upstream.Conn. It drops notifications/initialized, because the gateway itself sends this
// notification when it starts a process.
func (c *conn) Notify(ctx context.Context, req upstream.Request) error {
	m := req.Message
	switch {
	case req.Kind() != jsonrpc.Notification && req.Kind() != jsonrpc.Response:
		return fmt.Errorf("%w: the message is neither a notification nor an answer", upstream.ErrNeverSent)
	case m.Method == mcp.MethodInitialized:
		return nil
	case m.Method == mcp.MethodCancelled:
		return c.cancel(ctx, m)
	}
	line, err := frame(m.Raw)
	if err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	find := c.process
	if m.Kind == jsonrpc.Response || m.Method == mcp.MethodProgress {
		find = func(context.Context) (*process, error) { return c.requester(m) }
	}
	p, err := find(ctx)
	if err != nil {
		return err
	}
	return p.send(ctx, &c.lines, line, req.Permit)
}

// requester returns the process that has sent the request to which m belongs. m is a client's response or progress
// notification. If another process has replaced that process, requester returns an error.
func (c *conn) requester(m *jsonrpc.Message) (*process, error) {
	c.server.mu.Lock()
	p := c.host.proc
	c.server.mu.Unlock()
	if p == nil || p.isGone() || m.Kind == jsonrpc.Response && !p.calls.takeRequest(m.ID.Of(m.Raw)) || m.Kind != jsonrpc.Response && !p.calls.hasRequests() {
		return nil, fmt.Errorf("%w: server %q: the process that sent the request has ended", upstream.ErrNeverSent, c.server.cfg.Name)
	}
	return p, nil
}

// cancel notifies the process that a request of this session is cancelled. If no byte of the request was written to the
// process, cancel withdraws the request instead. If the session has no such request in flight, the cancellation is
// dropped.
func (c *conn) cancel(ctx context.Context, m *jsonrpc.Message) error {
	f, call := c.inFlight(jsonrpc.IDKey(m.RequestID.Of(m.Raw)))
	switch {
	case f == nil:
		return nil
	case call == nil, call.start.withdraw():
		f.cancel(upstream.ErrCancelled)
		return nil
	}
	line, err := frame(m.Raw, jsonrpc.Edit{Span: m.RequestID, With: call.number()})
	if err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	time.AfterFunc(cancelGrace, func() { f.cancel(upstream.ErrCancelled) })
	// A part of the request is already written, so the cancellation does not wait for other lines of the session.
	return call.proc.send(ctx, new(lineOrder), line, nil)
}

// Close implements upstream.Conn. It does not wait for the process to end, because other sessions may use the process.
func (c *conn) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.ended)
	for f := range c.flights {
		f.cancel(upstream.ErrClosed)
	}
	c.server.removeSession(c.host)
	return nil
}

// process returns the current process. Its errors wrap [upstream.ErrNeverSent], because no message was sent.
func (c *conn) process(ctx context.Context) (*process, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, c.closedError()
	}
	p, err := c.server.acquire(ctx, c.host, greeting{})
	switch {
	case err == nil && p.modern.Load() != c.modern: // the new process supports other revisions and does not know the session
		return nil, c.closedError()
	case err == nil:
		return p, nil
	case errors.Is(err, upstream.ErrNeverSent):
		return nil, err
	default:
		return nil, upstream.WithClass(upstream.ErrNeverSent, "there is no process", err) // the message was not sent
	}
}

func (c *conn) addFlight(f *flight) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.closedError()
	}
	c.flights[f] = struct{}{}
	return nil
}

func (c *conn) setCall(f *flight, call *pendingCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.call = call
}

func (c *conn) removeFlight(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, f)
}

// inFlight returns the request with the given id key, or nil if there is none. The returned call is nil before the
// request is registered with a process.
func (c *conn) inFlight(key string) (*flight, *pendingCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.flights {
		if key != "" && f.key == key {
			return f, f.call
		}
	}
	return nil, nil
}

func (c *conn) closedError() error {
	return fmt.Errorf("%w: server %q: %w", upstream.ErrNeverSent, c.server.cfg.Name, upstream.ErrClosed)
}
