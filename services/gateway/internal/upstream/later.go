package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// laterConn is a session that is opened with its server when something is first to
// be sent in it.
type laterConn struct {
	open func(context.Context, *room.Holding) (Conn, error)
	// turn is held by who opens it. It is a channel, for nobody waits for it longer
	// than for its answer.
	turn chan struct{}

	mu     sync.Mutex
	conn   Conn // nil until it is open
	closed bool
}

// Later returns a session that its server knows nothing of until the first request:
// then open opens it, with room for the answer to that, and what can't be opened is tried again by the next. A
// notification before that has nobody to go to, and is dropped.
func Later(open func(context.Context, *room.Holding) (Conn, error)) Conn {
	return &laterConn{open: open, turn: make(chan struct{}, 1)}
}

// Request implements Conn.
func (c *laterConn) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	conn, err := c.opened(ctx, req.Room)
	if err != nil { // its class is that of another message: this one was not sent
		return Answer{}, fmt.Errorf("%w: open the session: %s", ErrNeverSent, err) //nolint:errorlint // see above
	}
	return conn.Request(ctx, req, events)
}

// opened returns the session, which is opened where it is not.
func (c *laterConn) opened(ctx context.Context, of *room.Holding) (Conn, error) {
	if conn, err := c.now(); conn != nil || err != nil {
		return conn, err
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if conn, err := c.now(); conn != nil || err != nil {
		return conn, err
	}
	has := of.Beside()
	defer has.Close()
	conn, err := c.open(ctx, has)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if !c.closed {
		c.conn = conn
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return nil, errors.Join(errConnClosed, conn.Close(ctx))
}

// now returns the session, nil where it is not open yet, or why it never will be.
func (c *laterConn) now() (Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errConnClosed
	}
	return c.conn, nil
}

// Notify implements Conn.
func (c *laterConn) Notify(ctx context.Context, req Request) error {
	conn, err := c.now()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNeverSent, err)
	case conn == nil:
		return nil
	default:
		return conn.Notify(ctx, req)
	}
}

// Close implements Conn.
func (c *laterConn) Close(ctx context.Context) error {
	c.mu.Lock()
	conn := c.conn
	c.closed, c.conn = true, nil
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close(ctx)
}
