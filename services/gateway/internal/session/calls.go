package session

import "sync"

// Calls are a session's calls on their way, so that their client can give one up
// by its id. The zero value has none. It is safe for concurrent use.
type Calls struct {
	mu   sync.Mutex
	open map[*call]struct{}
}

// call is one of them.
type call struct {
	key    string
	giveUp func()
}

// Begin notes a call, by a key of its id, until the returned function is called.
func (c *Calls) Begin(key string, giveUp func()) (end func()) {
	begun := &call{key: key, giveUp: giveUp}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = make(map[*call]struct{})
	}
	c.open[begun] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, begun)
	}
}

// GiveUp gives up the call with this key: each, where a client uses one id twice.
func (c *Calls) GiveUp(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		if open.key == key {
			open.giveUp()
		}
	}
}
