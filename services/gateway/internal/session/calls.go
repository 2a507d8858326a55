package session

import "sync"

// Calls are a session's calls on their way, so that their client can give one up
// by its id. The zero value has none. It is safe for concurrent use.
type Calls struct {
	mu   sync.Mutex
	open map[*Call]struct{}
}

// Call is one of them.
type Call struct {
	calls  *Calls
	key    string
	giveUp func()
	sent   bool // guarded by Calls.mu
}

// Sent notes that the call is on its way to the server, or was.
func (c *Call) Sent() {
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	c.sent = true
}

// End forgets the call.
func (c *Call) End() {
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	delete(c.calls.open, c)
}

// Begin notes a call, by a key of its id, until it ends.
func (c *Calls) Begin(key string, giveUp func()) *Call {
	begun := &Call{calls: c, key: key, giveUp: giveUp}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = make(map[*Call]struct{})
	}
	c.open[begun] = struct{}{}
	return begun
}

// GiveUp gives up the call with this key: each, where a client uses one id twice. It
// tells whether the server has got one of them.
func (c *Calls) GiveUp(key string) (sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		if open.key == key {
			open.giveUp()
			sent = sent || open.sent
		}
	}
	return sent
}
