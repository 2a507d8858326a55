package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// listener is a session whose client hears what the process says aside of all requests.
type listener struct {
	messages chan []byte
	// queued is what waits in messages.
	queued *room.Holding
}

// Listen implements upstream.Conn. It goes on where another process takes the place of the
// session's.
func (c *conn) Listen(ctx context.Context, to upstream.Listener) error {
	l := &listener{messages: make(chan []byte, eventQueue), queued: to.Room.Beside()}
	defer l.queued.Close()
	if !c.attend(l) {
		return fmt.Errorf("%w: %w", upstream.ErrNoStream, upstream.ErrClosed)
	}
	defer c.leaveOff(l)
	to.Opened()
	for {
		select {
		case message := <-l.messages:
			err := to.Event(upstream.Event{Message: message})
			l.queued.Drop(len(message))
			if err != nil {
				return errors.Join(errUnheard, err)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.ended:
			return upstream.ErrClosed
		}
	}
}

// errUnheard means that nobody hears a process any more.
var errUnheard = errors.New("nobody listens")

// attend has a listener hear the session's processes, unless the session is closed.
func (c *conn) attend(l *listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if c.host.listeners == nil {
		c.host.listeners = make(map[*listener]struct{})
	}
	c.host.listeners[l] = struct{}{}
	return true
}

// leaveOff has a listener hear nothing more, and answers what it has not heard.
func (c *conn) leaveOff(l *listener) {
	c.server.mu.Lock()
	delete(c.host.listeners, l)
	p := c.host.proc
	c.server.mu.Unlock()
	if p != nil {
		p.refuseQueued(l.messages)
	}
}

// take queues a message, and reports whether there was room for it.
func (l *listener) take(message []byte) bool {
	if len(message) > maxEvent || !l.queued.Add(len(message)) {
		return false
	}
	select {
	case l.messages <- bytes.Clone(message): // the line it may be part of is not ours
		return true
	default:
		l.queued.Drop(len(message))
		return false
	}
}

// takeBack tells who listens that what the process asked has ended with it.
func (p *process) takeBack() {
	p.calls.mu.Lock()
	ids := p.calls.asked
	p.calls.asked = nil
	p.calls.mu.Unlock()
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	for l := range p.host.listeners {
		for _, key := range ids {
			l.take(upstream.Cancelled(gate.KeyID(key)).Request("", nil).Body())
		}
	}
}

// heard are those who hear what a process says aside: all sessions what is about the server
// itself, and else the only one, for it is the one that is meant.
func (p *process) heard(m *gate.Answer) (out []*listener) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if (m.Kind != gate.Notification || !mcp.AboutServer(m.Method)) && (s.cfg.Shared || p.host.conns != 1) {
		return nil
	}
	for l := range p.host.listeners {
		out = append(out, l)
	}
	return out
}
