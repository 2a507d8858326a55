package sqlstore

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"
)

// connectPause is the minimum time between a failed attempt to connect and the next attempt.
const connectPause = 100 * time.Millisecond

// connector opens connections. After a failed attempt, it makes only one attempt per connectPause, and all other
// callers receive the error of the last attempt. This is necessary because a PostgreSQL server starts a process for
// each attempt, even if it refuses the attempt. After a recovery, the server must end all these processes before it
// accepts new connections. A connector is safe for concurrent use.
type connector struct {
	driver.Connector

	mu     sync.Mutex
	failed error     // the error of the last attempt, or nil
	next   time.Time // the earliest time of the next attempt, if the last one failed
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.mayConnect(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // the caller's context has ended, which does not show that the server is unavailable
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	return conn, err
}

// mayConnect returns nil if a connection may be attempted now. Otherwise it returns the error of the last attempt.
func (c *connector) mayConnect() error {
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
