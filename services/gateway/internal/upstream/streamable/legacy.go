package streamable

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// legacy is a session with a server that supports only HTTP+SSE (MCP 2024-11-05). The session exists only as long as
// its stream. If the stream has ended, the next request opens another stream with another session.
type legacy struct {
	server     *Transport
	initialize upstream.Request
	// signedIn is the sign-in with which the session was opened. Only its access tokens are used. It is nil if the
	// server does not require OAuth.
	signedIn *accesstoken.Connection
	// turn is a lock for the request that opens a stream. It is a channel, so that other requests stop waiting when
	// their contexts are done.
	turn   chan struct{}
	now    atomic.Pointer[link]
	closed atomic.Bool
}

// openLegacy opens a session over HTTP+SSE. memory is the memory budget for the answer.
func (s *Transport) openLegacy(ctx context.Context, initialize upstream.Request, memory *limits.Memory) (*legacy, upstream.Answer, error) {
	signedIn, err := s.connection(ctx)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	c := &legacy{server: s, initialize: initialize, signedIn: signedIn, turn: make(chan struct{}, 1)}
	l, answer, err := c.open(ctx, memory)
	if err != nil {
		return nil, answer, err
	}
	c.now.Store(l)
	return c, answer, nil
}

func (c *legacy) open(ctx context.Context, memory *limits.Memory) (*link, upstream.Answer, error) {
	l, err := c.server.dial(ctx, c.signedIn, memory)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	initialize := c.initialize
	initialize.Room = memory
	answer, err := l.request(ctx, initialize, nil)
	if err != nil {
		l.end(err)
		return nil, answer, err
	}
	version := versionOf(answer.Message)
	if !mcp.IsSupported(version) {
		version = ""
	}
	l.serve(version)
	return l, answer, nil
}

// ensureStream returns the session's stream. If the stream has ended, ensureStream opens another one.
func (c *legacy) ensureStream(ctx context.Context, memory *limits.Memory) (*link, error) {
	if l := c.now.Load(); l.all.Err() == nil {
		return l, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	old := c.now.Load()
	switch {
	case c.closed.Load():
		return nil, upstream.ErrClosed
	case old.all.Err() == nil: // another request has already opened a stream
		return old, nil
	}
	beside := memory.Sibling()
	defer beside.Close()
	fresh, answer, err := c.open(ctx, beside)
	if err != nil {
		return nil, err
	}
	// The new session must have the revision that the client has negotiated in the old session.
	if answer.Message.Error.Present() || *fresh.version.Load() != *old.version.Load() {
		fresh.end(errLost)
		return nil, fmt.Errorf("the server now speaks %q instead of %q, or refuses a session", *fresh.version.Load(), *old.version.Load())
	}
	if err := fresh.notify(ctx, upstream.Initialized().Request("", nil)); err != nil {
		fresh.end(err)
		return nil, err
	}
	c.now.Store(fresh)
	if c.closed.Load() { // Close was called while the stream was being opened
		fresh.end(upstream.ErrClosed)
		return nil, upstream.ErrClosed
	}
	c.server.log.InfoContext(ctx, "server's stream had ended; opened a new one", "server", c.server.name)
	return fresh, nil
}

// Request implements upstream.Conn.
func (c *legacy) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	if c.closed.Load() {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, upstream.ErrClosed)
	}
	if err := c.signedIn.Err(); err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, err)
	}
	l, err := c.ensureStream(ctx, req.Room)
	if errors.Is(err, upstream.ErrUnreached) {
		return upstream.Answer{}, fmt.Errorf("%w: %w: %s", upstream.ErrNeverSent, upstream.ErrUnreached, c.server.name)
	}
	if err != nil { // err describes another message, but this request was not sent
		return upstream.Answer{}, upstream.WithClass(upstream.ErrNeverSent, c.server.name+" has no stream", err)
	}
	return l.request(ctx, req, events)
}

// Notify implements upstream.Conn. It returns an error if the stream to which the message belongs has ended.
func (c *legacy) Notify(ctx context.Context, req upstream.Request) error {
	l := c.now.Load()
	if err := c.signedIn.Err(); err != nil {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, err)
	}
	if l.all.Err() != nil {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, errLost)
	}
	return l.notify(ctx, req)
}

// Listen implements upstream.Conn.
func (c *legacy) Listen(ctx context.Context, to upstream.Listener) error {
	if err := c.signedIn.Err(); err != nil {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoStream, c.server.name, err)
	}
	l, err := c.ensureStream(ctx, to.Room)
	if err != nil {
		return upstream.WithClass(upstream.ErrNoAnswer, c.server.name, err)
	}
	heard := newQueue(to.Room)
	l.mu.Lock()
	l.listenerQueue = heard
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		if l.listenerQueue == heard {
			l.listenerQueue = nil
		}
		l.mu.Unlock()
		l.close(heard)
	}()
	to.Opened()
	for {
		select {
		case message := <-heard.messages:
			heard.release(message)
			if err := to.Event(upstream.Event{Message: message}); err != nil {
				return errors.Join(errUnheard, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.ended:
			if err := c.signedIn.Err(); err != nil {
				return fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, err)
			}
			return fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, errLost)
		}
	}
}

// Close implements upstream.Conn. It ends the stream and therefore the session.
func (c *legacy) Close(context.Context) error {
	c.closed.Store(true)
	c.now.Load().end(upstream.ErrClosed)
	return nil
}
