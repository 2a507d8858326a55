package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// cancelGrace is how long an answer may still come once the client has
// cancelled a request. A server that heeds the cancellation sends none.
const cancelGrace = 2 * time.Second

// Reasons for which a request of a session ends early.
var (
	errConnClosed = errors.New("the session was closed")
	errCancelled  = errors.New("the client cancelled the request")
)

// stdioConn is a session with a host's process, whichever that is at the time.
type stdioConn struct {
	server *stdioServer
	host   *stdioHost

	mu      sync.Mutex
	closed  bool
	flights map[*flight]struct{}
}

// flight is a request in flight.
type flight struct {
	key    string // of the client's id
	cancel context.CancelCauseFunc
	call   *pendingCall // nil until there is a process
}

func newStdioConn(s *stdioServer, h *stdioHost) *stdioConn {
	return &stdioConn{server: s, host: h, flights: make(map[*flight]struct{})}
}

// Request implements Conn.
func (c *stdioConn) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	if req.kind() != gate.Request || req.Method() == mcp.MethodInitialize {
		return Answer{}, fmt.Errorf("%w: the message is not a request that an open session can have", ErrNeverSent)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &flight{key: gate.IDKey(req.ID()), cancel: cancel}
	if err := c.depart(f); err != nil {
		return Answer{}, err
	}
	defer c.arrive(f)
	call, err := c.enlist(ctx, req.Message, req.Room, events != nil)
	if err != nil {
		return Answer{}, err
	}
	defer call.proc.recycle()
	c.bind(f, call)
	answer, err := call.proc.do(ctx, call, events)
	return Answer{Message: answer}, err
}

// enlist registers a request with the process that is to serve it.
func (c *stdioConn) enlist(ctx context.Context, m *gate.Message, has *room.Holding, events bool) (*pendingCall, error) {
	for {
		p, err := c.process(ctx)
		if err != nil {
			return nil, err
		}
		if call := p.register(m, has, events); call != nil {
			return call, nil
		} // else it was retired a moment ago, and the next one is waited for
	}
}

// Notify implements Conn. The process was told that it is initialized when it
// started, and it can't have asked for progress.
func (c *stdioConn) Notify(ctx context.Context, req Request) error {
	m := req.Message
	switch {
	case req.kind() != gate.Notification:
		return fmt.Errorf("%w: the message is not a notification", ErrNeverSent)
	case m.Method == mcp.MethodInitialized, m.Method == mcp.MethodProgress:
		return nil
	case m.Method == mcp.MethodCancelled:
		return c.cancel(ctx, m)
	}
	line, err := frame(m.Raw)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	p, err := c.process(ctx)
	if err != nil {
		return err
	}
	return p.send(ctx, line)
}

// cancel tells the process that one of this session's own requests is
// cancelled. A cancellation of anything else is dropped.
func (c *stdioConn) cancel(ctx context.Context, m *gate.Message) error {
	f, call := c.inFlight(gate.IDKey(m.RequestID.Of(m.Raw)))
	if call == nil {
		return nil
	}
	line, err := frame(m.Raw, gate.Edit{Span: m.RequestID, With: call.number()})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	err = call.proc.send(ctx, line)
	time.AfterFunc(cancelGrace, func() { f.cancel(errCancelled) })
	return err
}

// Close implements Conn. It does not wait for the process, which other sessions
// may use.
func (c *stdioConn) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	for f := range c.flights {
		f.cancel(errConnClosed)
	}
	c.server.leave(c.host)
	return nil
}

// process returns the process to talk to. None of its errors leaves a doubt: the
// message at hand was not sent.
func (c *stdioConn) process(ctx context.Context) (*process, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return nil, c.closedError()
	}
	p, err := c.server.acquire(ctx, c.host, nil)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, ErrNeverSent):
		return nil, err
	default:
		return nil, fmt.Errorf("%w: %s", ErrNeverSent, err) //nolint:errorlint // the class of a failed start is not that of the message
	}
}

func (c *stdioConn) depart(f *flight) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.closedError()
	}
	c.flights[f] = struct{}{}
	return nil
}

func (c *stdioConn) bind(f *flight, call *pendingCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.call = call
}

func (c *stdioConn) arrive(f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.flights, f)
}

// inFlight returns the request with that id; nil if there is none.
func (c *stdioConn) inFlight(key string) (*flight, *pendingCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.flights {
		if key != "" && f.key == key && f.call != nil {
			return f, f.call
		}
	}
	return nil, nil
}

func (c *stdioConn) closedError() error {
	return fmt.Errorf("%w: server %q: %w", ErrNeverSent, c.server.cfg.Name, errConnClosed)
}
