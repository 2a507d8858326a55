package stdio

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Reasons for which a message of a process is dropped.
const (
	// dropMalformed: no JSON-RPC message, or one that could be read in two ways.
	dropMalformed = "malformed"
	// dropUnknown: an answer to no request, or a second one.
	dropUnknown = "unknown_id"
	// dropLate: the answer to a request that was given up. The process did as it was asked,
	// so that does not end it: who gives up would end it for all.
	dropLate = "late"
	// dropUnasked: a notification that belongs to no request.
	dropUnasked = "unasked"
	// dropOverflow: a message for somebody who can't take it in time or at all.
	dropOverflow = "overflow"
	// dropRequest: a request of the server, which the gateway answered itself.
	dropRequest = "server_request"
	// dropUnusable: an answer that ended its call, because it can't be used.
	dropUnusable = "unusable"
)

// maxServerID is the longest id of a server's request that is answered, in bytes.
const maxServerID = 1 << 10

// drop counts a message that goes no further. The first of a kind is logged.
func (p *process) drop(reason string) {
	p.drops[reason]++
	if p.drops[reason] == 1 {
		p.log.InfoContext(context.Background(), "message of a server dropped; more are only counted", "reason", reason)
	}
}

// receive takes one line of the process, which it keeps only where it is its own. It
// returns why the message was dropped; empty if it was not.
func (p *process) receive(line []byte, own bool) string {
	a, err := intake.Mended(context.Background(), line, p.server.clean, p.room, p.calls.methodOf) // turns are short
	switch {
	case err != nil:
		return p.unreadable(line, err)
	case a.Kind == gate.Response:
		return p.settle(a, own)
	case a.Kind == gate.Request:
		return p.requested(a)
	default:
		return p.notified(a)
	}
}

// settle hands an answer over to its request, with the room that it takes.
func (p *process) settle(a *gate.Answer, own bool) string {
	id := a.ID.Of(a.Raw)
	if number := gate.NumberIn(id); number != nil {
		id = number
	}
	c := p.calls.find(id)
	switch {
	case c != nil:
	case p.calls.owes(id):
		return dropLate
	default:
		return p.misses(gate.Sketch{ID: id, Result: a.Result.Present(), Error: a.Error.Present()})
	}
	p.calls.remove(c)
	if upstream.Forged(a) {
		c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, upstream.ErrForged)}
		return ""
	}
	if !p.room.Give(c.room) {
		c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, room.ErrFull)}
		return ""
	}
	if !own {
		a.Raw = bytes.Clone(a.Raw)
	}
	c.result <- callResult{a, nil}
	return ""
}

// unreadable ends the call whose answer a line that can't be read looks like.
func (p *process) unreadable(line []byte, err error) string {
	s, is := gate.SketchOf(line)
	if !is {
		return dropMalformed
	}
	number := s.ID
	if text := gate.NumberIn(s.ID); text != nil {
		number = text
	}
	switch c := p.calls.find(number); {
	case c != nil:
		p.fail(c, upstream.Unreadable(err))
		return ""
	case p.calls.owes(number):
		return dropLate
	default:
		if p.misses(s) == "" {
			return ""
		}
		return dropMalformed
	}
}

// misses ends the call that an answer is meant for, though it doesn't name it as JSON-RPC demands: the one whose id it
// has in another spelling or, of an error without an id, the only one in flight. It returns why the answer was dropped
// if there is none.
func (p *process) misses(s gate.Sketch) string {
	if n, ok := gate.Integer(s.ID); ok {
		if c := p.calls.find(strconv.AppendInt(nil, n, 10)); c != nil {
			p.fail(c, upstream.ErrOtherID)
			return ""
		}
	}
	if s.ID == nil || string(s.ID) == "null" {
		if c := p.calls.alone(p.server.cfg.Shared); c != nil && s.Error && !s.Result {
			p.fail(c, upstream.ErrNoID)
			return ""
		}
	}
	return dropUnknown
}

// fail ends a call whose answer can't be used.
func (p *process) fail(c *pendingCall, why error) {
	p.calls.remove(c)
	p.drop(dropUnusable)
	c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, why)}
}

// requested takes a request of the server to the only session's client, or answers it.
func (p *process) requested(a *gate.Answer) string {
	id := a.ID.Of(a.Raw)
	if len(id) > maxServerID {
		return dropOverflow
	}
	if !p.modern.Load() && a.Method != mcp.MethodPing && len(a.Raw) <= maxEvent && p.host.hasOne(p.server) && p.calls.ask(id) {
		if p.aside(a, a.Raw) {
			return ""
		}
		p.calls.answered(id)
	}
	if !p.replied(a) {
		return dropOverflow
	}
	return dropRequest
}

// replied answers a request of the server that no client takes, and reports whether the process
// takes that.
func (p *process) replied(a *gate.Answer) bool {
	id := a.ID.Of(a.Raw)
	own := upstream.Refused(id, mcp.CodeMethodUnknown, upstream.NotCarried)
	if a.Method == mcp.MethodPing {
		own = upstream.Pong(id)
	}
	req := own.Request("", nil)
	line, err := frame(req.Body())
	return err == nil && req.Kind() != gate.Invalid && p.reply(line)
}

// refuseQueued answers the requests of the server that were queued for who takes none any more.
func (p *process) refuseQueued(messages chan []byte) {
	for {
		select {
		case message := <-messages:
			if a, err := gate.ReadAnswer(message, gate.AnswerLimits()); err == nil && a.Kind == gate.Request && p.calls.answered(a.ID.Of(a.Raw)) {
				p.replied(a)
			}
		default:
			return
		}
	}
}

// aside delivers what belongs to none of a session's requests, and reports whether somebody takes
// it. Of the only session that is the request in flight, where it is one: what a process says
// meanwhile is most likely about that. Else it is who listens, or the request that came first.
func (p *process) aside(m *gate.Answer, message []byte) bool {
	one := p.host.hasOne(p.server)
	if c := p.calls.only(); one && c != nil && c.events != nil {
		return p.deliver(c, message) == ""
	}
	taken := false
	for _, l := range p.heard(m) {
		taken = l.take(message) || taken
	}
	if c := p.calls.first(); one && !taken && c != nil {
		return p.deliver(c, message) == ""
	}
	return taken
}

// notified takes a notification to the request or the sessions that it belongs to, and notes
// that the list of tools has changed.
func (p *process) notified(a *gate.Answer) string {
	if a.Method == mcp.MethodToolsChanged {
		p.server.Tell()
	}
	edits := a.Clean(nil)
	var c *pendingCall
	switch {
	case a.Method == mcp.MethodProgress:
		if c = p.calls.find(a.ProgressToken.Of(a.Raw)); c == nil || !upstream.Belongs(a, c.progressToken()) {
			return dropUnasked
		}
		edits = append(edits, gate.Edit{Span: a.ProgressToken, With: c.token})
	case a.Subscription.Present():
		if c = p.calls.find(a.Subscription.Of(a.Raw)); c == nil || c.m.Method != mcp.MethodListen {
			return dropUnasked
		}
		edits = append(edits, gate.Edit{Span: a.Subscription, With: c.client})
	case a.Method == mcp.MethodMessage && !p.server.cfg.Shared: // where what a process says aside may be about any of its sessions
		c = p.calls.only()
	}
	message, err := gate.Splice(a.Raw, edits...)
	switch {
	case err != nil || len(message) > maxEvent:
		return dropOverflow
	case c != nil && c.events != nil:
		return p.deliver(c, message)
	case p.aside(a, message), a.Method == mcp.MethodToolsChanged:
		return ""
	default:
		return dropUnasked
	}
}

// deliver queues a message for the reader of a request.
func (p *process) deliver(c *pendingCall, message []byte) string {
	if c.m.Method == mcp.MethodListen && time.Since(c.begun) >= time.Minute {
		c.begun, c.seen, c.bytes = time.Now(), 0, 0
	}
	c.seen, c.bytes = c.seen+1, c.bytes+len(message)
	if c.seen > upstream.MaxEvents || c.bytes > upstream.MaxStream {
		p.calls.remove(c)
		c.result <- callResult{err: fmt.Errorf("%w: server %q: more than %d messages, or %d bytes, came before the answer",
			upstream.ErrNoAnswer, p.server.cfg.Name, upstream.MaxEvents, upstream.MaxStream)}
		return dropOverflow
	}
	if !c.queued.Add(len(message)) {
		return dropOverflow
	}
	select {
	case c.events <- bytes.Clone(message): // the line it may be part of is not ours
		return ""
	default:
		c.queued.Drop(len(message))
		return dropOverflow
	}
}
