package sqlstore

import (
	"context"
	"database/sql/driver"
	"sync"
	"time"
)

// connectPause is how long nobody tries to connect where somebody has just failed to.
const connectPause = 100 * time.Millisecond

// connector opens connections. While that fails, one attempt is made every connectPause
// and all others get the error of the last one: a server makes a process for each attempt
// before it can refuse it, and when it works again it has to end all of them before it
// hears anybody new. It is safe for concurrent use.
type connector struct {
	driver.Connector

	mu     sync.Mutex
	failed error     // how the last attempt failed; nil where it did not
	next   time.Time // when the next attempt may be made, where the last has failed
}

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.turn(); err != nil {
		return nil, err
	}
	conn, err := c.Connector.Connect(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, err // who asked has given up, which says nothing of the server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = err
	return conn, err
}

// turn is nil where an attempt may be made.
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
