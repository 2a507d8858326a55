package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// cancelGrace is how long an answer of a server may still come once its client has given the call up, as
// a server may not send one (MCP, Cancellation). Where a transport waits itself it is for less.
const cancelGrace = 3 * time.Second

// Calls are a session's calls on their way, so that their client can give one up
// by its id. The zero value has none. It is safe for concurrent use.
type Calls struct {
	mu   sync.Mutex
	open map[*Call]struct{}
}

// Call is one of them.
type Call struct {
	session *Session
	key     string
	giveUp  context.CancelFunc
	sent    bool // guarded by Calls.mu
	// leave ends the wait for the server's answer; nil where nobody waits for it. It is guarded by Calls.mu.
	leave context.CancelCauseFunc
	// ends ends the call at its server too; nil where a client that has gone ends nothing.
	ends context.Context //nolint:containedctx // the client's own
	// may decides on what the server asks; nil where it can't ask in an answer.
	may func(ctx context.Context, id, raw []byte) *upstream.Own
	// patience is the server's clock; nil for one that is never stopped.
	patience *upstream.Patience
}

// Begin notes a call, by a key of its id, until it ends, with the clock of its server, which may
// be nil. The context ends then, or before, once the client gives the call up.
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

// Forward sends the call to the server, as [upstream.Session] does, and notes
// before that it did: nobody is told of the end of one that was not sent. The request has
// to say how it is left.
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

// EndsWith has the call end at its server where this context does: 2026-07-28 has no other way to
// cancel one (MCP 2026-07-28, Cancellation). It is to be called before Forward.
func (c *Call) EndsWith(client context.Context) { c.ends = client }

// Decides has what the server asks decided on, where the client is asked in an answer. It is to be
// called before Forward.
func (c *Call) Decides(may func(ctx context.Context, id, raw []byte) *upstream.Own) { c.may = may }

// Sent notes that the call is on its way to the server, or was, and what ends the wait for its answer.
func (c *Call) Sent(leave context.CancelCauseFunc) {
	c.session.Calls.mu.Lock()
	defer c.session.Calls.mu.Unlock()
	c.sent, c.leave = true, leave
}

// End forgets the call.
func (c *Call) End() {
	c.session.Calls.mu.Lock()
	delete(c.session.Calls.open, c)
	c.session.Calls.mu.Unlock()
	c.giveUp()
}

// Pause says that the server waits for the client, whichever of the calls that is for, until
// resume is called, once.
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

// GiveUp gives up the call with this key: each, where a client uses one id twice. It
// reports whether the server may have got one of them.
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
