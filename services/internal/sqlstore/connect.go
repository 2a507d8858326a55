package sqlstore

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"
)

// connectPause is the minimum time between attempts to connect while they fail.
const connectPause = 100 * time.Millisecond

// connector opens connections. While that fails, it makes one attempt every connectPause, and other callers get the
// error of the last one: a PostgreSQL server starts a process for each attempt before it can refuse it, and after its
// recovery has to end all of them before it accepts new connections. It is safe for concurrent use.
type connector struct {
	driver.Connector

	mu     sync.Mutex
	failed error     // the error of the last attempt, or nil
	next   time.Time // when the next attempt may be made, if the last one failed
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.turn(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // the caller gave up, which says nothing about the server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	return conn, err
}

// turn returns nil if an attempt may be made, otherwise the last error.
func (c *connector) turn() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed == nil {
		return nil
	}
	now := time.Now()
	if now.Before(c.next) {
		return c.failed
	}
	c.next = now.Add(connectPause)
	return nil
}
