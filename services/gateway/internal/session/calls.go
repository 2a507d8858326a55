package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// cancelGrace is how long the answer of a server may still arrive after its client has cancelled the call; a server
// need not send one (MCP, Cancellation). Transports that wait themselves wait for less.
const cancelGrace = 3 * time.Second

// Calls are a session's calls that are in flight, so that their client can cancel one by its id. The zero value is
// empty. It is safe for concurrent use.
type Calls struct {
	mu   sync.Mutex
	open map[*Call]struct{}
}

// Call is a call that is in flight.
type Call struct {
	session *Session
	key     string
	giveUp  context.CancelFunc
	sent    bool // guarded by Calls.mu
	// leave ends the wait for the server's answer; nil while nothing waits for it. It is guarded by Calls.mu.
	leave context.CancelCauseFunc
	// ends cancels the call at its server too; nil if a client that disconnects cancels nothing.
	ends context.Context //nolint:containedctx // the client's context
	// may decides on the server's requests; nil if the server cannot send requests in an answer.
	may func(ctx context.Context, id, raw []byte) *upstream.Own
	// patience is the clock of the server's time; nil for one that is never paused.
	patience *upstream.Patience
}

// Begin adds a call by a key of its id, with the clock of its server, which may be nil. The returned context is
// cancelled when the call ends or the client cancels it.
func (s *Session) Begin(ctx context.Context, key string, patience *upstream.Patience) (context.Context, *Call) {
	begun := &Call{session: s, key: key, patience: patience}
	ctx, begun.giveUp = context.WithCancel(ctx)
	s.Calls.mu.Lock()
	defer s.Calls.mu.Unlock()
	if s.Calls.open == nil {
		s.Calls.open = make(map[*Call]struct{})
	}
	s.Calls.open[begun] = struct{}{}
	return ctx, begun
}

// Forward sends the call to the server, as [upstream.Session] does. It notes before that the call was sent, because
// the end of an unsent call is not reported to a server. req.Leave must be set.
func (c *Call) Forward(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error) {
	if c.ends != nil && c.ends.Err() != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, upstream.ErrCancelled)
	}
	req.May = c.may
	if c.ends != nil {
		defer context.AfterFunc(c.ends, func() { req.Leave(upstream.ErrCancelled) })()
	}
	c.Sent(req.Leave)
	return c.session.Upstream.Forward(ctx, req, events)
}

// EndsWith cancels the call at its server when client is cancelled: 2026-07-28 has no other way to cancel a call (MCP
// 2026-07-28, Cancellation). It must be called before Forward.
func (c *Call) EndsWith(client context.Context) { c.ends = client }

// Decides sets the function that decides on the server's requests, if the client is asked in an answer. It must be
// called before Forward.
func (c *Call) Decides(may func(ctx context.Context, id, raw []byte) *upstream.Own) { c.may = may }

// Sent notes that the call was sent or is about to be, and the function that ends the wait for its answer.
func (c *Call) Sent(leave context.CancelCauseFunc) {
	c.session.Calls.mu.Lock()
	defer c.session.Calls.mu.Unlock()
	c.sent, c.leave = true, leave
}

// End removes the call and cancels its context.
func (c *Call) End() {
	c.session.Calls.mu.Lock()
	delete(c.session.Calls.open, c)
	c.session.Calls.mu.Unlock()
	c.giveUp()
}

// Pause stops the clocks of all calls, because the server waits for the client, until resume is called. resume may be
// called only once.
func (c *Calls) Pause() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var resumes []func()
	for open := range c.open {
		resumes = append(resumes, open.patience.Pause())
	}
	return func() {
		for _, resume := range resumes {
			resume()
		}
	}
}

// GiveUp cancels the calls with this key: all of them if a client uses an id twice. It reports whether one of them
// may have reached the server.
func (c *Calls) GiveUp(key string) (sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		if open.key == key {
			open.giveUp()
			sent = sent || open.sent
			if leave := open.leave; leave != nil {
				time.AfterFunc(cancelGrace, func() { leave(upstream.ErrCancelled) })
			}
		}
	}
	return sent
}
