package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// cancelGrace is how long the gateway waits for a server's response after the client has cancelled the call. The server
// need not send a response (MCP, Cancellation). Some transports also wait for the response, for a shorter time.
const cancelGrace = 3 * time.Second

// Calls contains a session's calls in flight, so that the client can cancel a call by its id. The zero value is empty.
// It is safe for concurrent use.
type Calls struct {
	mu   sync.Mutex
	open map[*Call]struct{}
}

// Call is a call in flight.
type Call struct {
	session *Session
	key     string
	giveUp  context.CancelFunc
	sent    bool // Calls.mu guards this field
	// stopWaiting ends the wait for the server's response. It is nil while no goroutine waits. Calls.mu guards it.
	stopWaiting context.CancelCauseFunc
	// clientContext is the client's context. When it is done, the gateway also cancels the call at the server. It is
	// nil if the call continues after the client has disconnected.
	clientContext context.Context //nolint:containedctx // the client's context
	// decide evaluates the requests in the server's answer. It is nil if the answer cannot contain requests.
	decide func(ctx context.Context, id, raw []byte) *upstream.GatewayMessage
	// deadline measures the server's timeout. It is nil if the call has no timeout.
	deadline *upstream.PausableDeadline
}

// BeginCall adds a call. key is derived from the call's id. deadline measures the server's timeout, and may be nil. The
// returned context is cancelled when the call ends or the client cancels it.
func (s *Session) BeginCall(ctx context.Context, key string, deadline *upstream.PausableDeadline) (context.Context, *Call) {
	begun := &Call{session: s, key: key, deadline: deadline}
	ctx, begun.giveUp = context.WithCancel(ctx)
	s.Calls.mu.Lock()
	defer s.Calls.mu.Unlock()
	if s.Calls.open == nil {
		s.Calls.open = make(map[*Call]struct{})
	}
	s.Calls.open[begun] = struct{}{}
	return ctx, begun
}

// Forward sends the call to the server, as [upstream.Session] does. Forward first marks the call as sent, because the
// gateway notifies the server of a cancellation only if the call was sent. req.Leave must be set.
func (c *Call) Forward(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error) {
	if c.clientContext != nil && c.clientContext.Err() != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, upstream.ErrCancelled)
	}
	req.May = c.decide
	if c.clientContext != nil {
		defer context.AfterFunc(c.clientContext, func() { req.Leave(upstream.ErrCancelled) })()
	}
	c.MarkSent(req.Leave)
	return c.session.Upstream.Forward(ctx, req, events)
}

// CancelWith makes the gateway cancel the call at the server when the given context of the client is cancelled. In
// revision 2026-07-28, a client cancels a call by disconnecting (MCP 2026-07-28, Cancellation). CancelWith must be
// called before Forward.
func (c *Call) CancelWith(client context.Context) { c.clientContext = client }

// SetServerRequests sets the function that evaluates the requests in the server's answer. It must be called before
// Forward.
func (c *Call) SetServerRequests(may func(ctx context.Context, id, raw []byte) *upstream.GatewayMessage) {
	c.decide = may
}

// MarkSent marks the call as sent. It must be called before the call is sent. leave is the function that ends the wait
// for the response.
func (c *Call) MarkSent(leave context.CancelCauseFunc) {
	c.session.Calls.mu.Lock()
	defer c.session.Calls.mu.Unlock()
	c.sent, c.stopWaiting = true, leave
}

// End removes the call and cancels its context.
func (c *Call) End() {
	c.session.Calls.mu.Lock()
	delete(c.session.Calls.open, c)
	c.session.Calls.mu.Unlock()
	c.giveUp()
}

// Pause pauses the deadlines of all calls until the returned function is called. The gateway calls Pause while a server
// waits for the client. The caller must call the returned function once.
func (c *Calls) Pause() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var resumes []func()
	for open := range c.open {
		resumes = append(resumes, open.deadline.Pause())
	}
	return func() {
		for _, resume := range resumes {
			resume()
		}
	}
}

// Cancel cancels all calls with the given key. Several calls can have the same key, because a client may use an id more
// than once. Cancel reports whether any of these calls might have reached the server.
func (c *Calls) Cancel(key string) (sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		if open.key == key {
			open.giveUp()
			sent = sent || open.sent
			if leave := open.stopWaiting; leave != nil {
				time.AfterFunc(cancelGrace, func() { leave(upstream.ErrCancelled) })
			}
		}
	}
	return sent
}
