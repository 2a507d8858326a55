package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// listener receives a process's messages that belong to no request of the listener's session.
type listener struct {
	messages chan []byte
	// queued is the memory for the messages in the channel.
	queued *limits.Memory
}

// Listen implements upstream.Conn. If another process replaces the session's process, the listener stays registered.
func (c *conn) Listen(ctx context.Context, to upstream.Listener) error {
	l := &listener{messages: make(chan []byte, eventQueue), queued: to.Room.Sibling()}
	defer l.queued.Close()
	if !c.addListener(l) {
		return fmt.Errorf("%w: %w", upstream.ErrNoStream, upstream.ErrClosed)
	}
	defer c.removeListener(l)
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

// errUnheard means that the client of a listener does not receive the process's messages any more.
var errUnheard = errors.New("the process has no listener")

// addListener registers a listener for messages from the session's processes. It returns false if the session is
// closed.
func (c *conn) addListener(l *listener) bool {
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

// removeListener removes a listener, and refuses the server's requests that are still in the listener's queue.
func (c *conn) removeListener(l *listener) {
	c.server.mu.Lock()
	delete(c.host.listeners, l)
	p := c.host.proc
	c.server.mu.Unlock()
	if p != nil {
		p.refuseQueued(l.messages)
	}
}

// queue queues a message, and reports whether there was enough memory and a free slot.
func (l *listener) queue(message []byte) bool {
	if len(message) > maxEvent || !l.queued.Add(len(message)) {
		return false
	}
	select {
	case l.messages <- bytes.Clone(message): // message is a part of a buffer that is reused
		return true
	default:
		l.queued.Drop(len(message))
		return false
	}
}

// cancelRequests sends a cancellation to the listeners for each open request from a process that has ended.
func (p *process) cancelRequests() {
	p.calls.mu.Lock()
	ids := p.calls.processRequests
	p.calls.processRequests = nil
	p.calls.mu.Unlock()
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	for l := range p.host.listeners {
		for _, key := range ids {
			l.queue(upstream.Cancelled(jsonrpc.KeyID(key)).Request("", nil).Body())
		}
	}
}

// listenersFor returns the listeners for a message that belongs to no request. For a notification about the server
// itself, it returns all listeners. For any other message, it returns the listeners of the only session. If there are
// several sessions, it returns none.
func (p *process) listenersFor(m *jsonrpc.Answer) (out []*listener) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if (m.Kind != jsonrpc.Notification || !mcp.IsServerNotification(m.Method)) && (s.cfg.Shared || p.host.conns != 1) {
		return nil
	}
	for l := range p.host.listeners {
		out = append(out, l)
	}
	return out
}
