package stdio

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// These are the reasons why a message from a process is dropped.
const (
	// dropMalformed means that the message is not JSON-RPC, or that it is ambiguous, because two parsers could read it
	// differently.
	dropMalformed = "malformed"
	// dropUnknown means that the message is an answer to an unknown request, or a second answer to a request.
	dropUnknown = "unknown_id"
	// dropLate means that the message is an answer to an abandoned request. Such messages do not count toward the limit
	// after which the process is terminated. Otherwise, a caller could abandon many requests and thereby terminate the
	// process for all callers.
	dropLate = "late"
	// dropUnasked means that the message is a notification that belongs to no request.
	dropUnasked = "unasked"
	// dropOverflow means that the receiver is too slow or can't receive the message at all.
	dropOverflow = "overflow"
	// dropRequest means that the message is a request from the server that the gateway has answered itself.
	dropRequest = "server_request"
	// dropUnusable means that the message is an answer that can't be used. The answered call fails.
	dropUnusable = "unusable"
)

// maxServerID is the maximum length of a server's request id, in bytes. Requests with a longer id get no response.
const maxServerID = 1 << 10

// drop counts a dropped message. It logs the first dropped message for each reason.
func (p *process) drop(reason string) {
	p.drops[reason]++
	if p.drops[reason] == 1 {
		p.log.InfoContext(context.Background(), "server message dropped; later ones are only counted", "reason", reason)
	}
}

// receive handles one line from the process. If own is true, receive may keep the line. Otherwise, it copies the parts
// that it needs. It returns the reason for dropping the message, or "" if the message was not dropped.
func (p *process) receive(line []byte, own bool) string {
	a, err := bodyreader.ReadRepaired(context.Background(), line, p.server.clean, p.room, p.calls.methodOf) // waiting for processor time takes only a short time
	switch {
	case err != nil:
		return p.unreadable(line, err)
	case a.Kind == jsonrpc.Response:
		return p.deliverAnswer(a, own)
	case a.Kind == jsonrpc.Request:
		return p.handleRequest(a)
	default:
		return p.handleNotification(a)
	}
}

// deliverAnswer passes an answer and its memory to the answered request. It returns the reason for dropping the answer,
// or "" if the answer was not dropped.
func (p *process) deliverAnswer(a *jsonrpc.Answer, own bool) string {
	id := a.ID.Of(a.Raw)
	if number := jsonrpc.NumberIn(id); number != nil {
		id = number
	}
	c := p.calls.find(id)
	switch {
	case c != nil:
	case p.calls.wasAbandoned(id):
		return dropLate
	default:
		return p.failByLooseID(jsonrpc.Sketch{ID: id, Result: a.Result.Present(), Error: a.Error.Present()})
	}
	p.calls.remove(c)
	if upstream.IsForged(a) {
		c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, upstream.ErrForged)}
		return ""
	}
	if !p.room.Transfer(c.room) {
		c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, limits.ErrMemory)}
		return ""
	}
	if !own {
		a.Raw = bytes.Clone(a.Raw)
	}
	c.result <- callResult{a, nil}
	return ""
}

// unreadable fails the call to which an unreadable line seems to belong.
func (p *process) unreadable(line []byte, err error) string {
	s, is := jsonrpc.SketchOf(line)
	if !is {
		return dropMalformed
	}
	number := s.ID
	if text := jsonrpc.NumberIn(s.ID); text != nil {
		number = text
	}
	switch c := p.calls.find(number); {
	case c != nil:
		p.fail(c, upstream.AsAnswerError(err))
		return ""
	case p.calls.wasAbandoned(number):
		return dropLate
	default:
		if p.failByLooseID(s) == "" {
			return ""
		}
		return dropMalformed
	}
}

// failByLooseID handles an answer whose id matches no call. If the id is a call's id in another form, this call fails.
// If the answer is an error without an id and only one call is in flight, this call fails. In both cases, failByLooseID
// returns "". Otherwise, it returns the reason for dropping the answer.
func (p *process) failByLooseID(s jsonrpc.Sketch) string {
	if n, ok := jsonrpc.Integer(s.ID); ok {
		if c := p.calls.find(strconv.AppendInt(nil, n, 10)); c != nil {
			p.fail(c, upstream.ErrOtherID)
			return ""
		}
	}
	if s.ID == nil || string(s.ID) == "null" {
		if c := p.calls.onlyPending(p.server.cfg.Shared); c != nil && s.Error && !s.Result {
			p.fail(c, upstream.ErrNoID)
			return ""
		}
	}
	return dropUnknown
}

// fail ends a call whose answer cannot be used.
func (p *process) fail(c *pendingCall, why error) {
	p.calls.remove(c)
	p.drop(dropUnusable)
	c.result <- callResult{nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, why)}
}

// handleRequest passes a request from the server to the client of the only session. If this is not possible, it
// responds itself.
func (p *process) handleRequest(a *jsonrpc.Answer) string {
	id := a.ID.Of(a.Raw)
	if len(id) > maxServerID {
		return dropOverflow
	}
	if !p.modern.Load() && a.Method != mcp.MethodPing && len(a.Raw) <= maxEvent && p.host.hasOne(p.server) && p.calls.addRequest(id) {
		if p.deliverUnassigned(a, a.Raw) {
			return ""
		}
		p.calls.takeRequest(id)
	}
	if !p.refuseRequest(a) {
		return dropOverflow
	}
	return dropRequest
}

// refuseRequest responds to a request from the server that no client accepts. It reports whether the response was
// queued.
func (p *process) refuseRequest(a *jsonrpc.Answer) bool {
	id := a.ID.Of(a.Raw)
	own := upstream.Refused(id, mcp.CodeMethodUnknown, upstream.NoClientForRequest)
	if a.Method == mcp.MethodPing {
		own = upstream.Pong(id)
	}
	req := own.Request("", nil)
	line, err := frame(req.Body())
	return err == nil && req.Kind() != jsonrpc.Invalid && p.reply(line)
}

// refuseQueued refuses the server's requests in a queue that is no longer read.
func (p *process) refuseQueued(messages chan []byte) {
	for {
		select {
		case message := <-messages:
			if a, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits()); err == nil && a.Kind == jsonrpc.Request && p.calls.takeRequest(a.ID.Of(a.Raw)) {
				p.refuseRequest(a)
			}
		default:
			return
		}
	}
}

// deliverUnassigned delivers a message that does not say to which request it belongs, and reports whether the message
// has a receiver. If the process has only one session with one request in flight, this request receives the message.
// Otherwise, the listeners receive it. If no listener accepts the message, the oldest request of the only session
// receives it.
func (p *process) deliverUnassigned(m *jsonrpc.Answer, message []byte) bool {
	one := p.host.hasOne(p.server)
	if c := p.calls.onlyCall(); one && c != nil && c.events != nil {
		return p.deliver(c, message) == ""
	}
	taken := false
	for _, l := range p.listenersFor(m) {
		taken = l.queue(message) || taken
	}
	if c := p.calls.first(); one && !taken && c != nil {
		return p.deliver(c, message) == ""
	}
	return taken
}

// handleNotification passes a notification to the request or to the sessions to which it belongs. It also records if
// the tools list has changed.
func (p *process) handleNotification(a *jsonrpc.Answer) string {
	if a.Method == mcp.MethodToolsChanged {
		p.server.Notify()
	}
	edits := a.Clean(nil)
	var c *pendingCall
	switch {
	case a.Method == mcp.MethodProgress:
		if c = p.calls.find(a.ProgressToken.Of(a.Raw)); c == nil || !upstream.BelongsToRequest(a, c.progressToken()) {
			return dropUnasked
		}
		edits = append(edits, jsonrpc.Edit{Span: a.ProgressToken, With: c.token})
	case a.Subscription.Present():
		if c = p.calls.find(a.Subscription.Of(a.Raw)); c == nil || c.m.Method != mcp.MethodListen {
			return dropUnasked
		}
		edits = append(edits, jsonrpc.Edit{Span: a.Subscription, With: c.client})
	case a.Method == mcp.MethodMessage && !p.server.cfg.Shared: // in a shared process, the message may belong to any session
		c = p.calls.onlyCall()
	}
	message, err := jsonrpc.ApplyEdits(a.Raw, edits...)
	switch {
	case err != nil || len(message) > maxEvent:
		return dropOverflow
	case c != nil && c.events != nil:
		return p.deliver(c, message)
	case p.deliverUnassigned(a, message), a.Method == mcp.MethodToolsChanged:
		return ""
	default:
		return dropUnasked
	}
}

// deliver queues a message for the receiver of a request. It returns the reason for dropping the message, or "" if the
// message was not dropped.
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
	case c.events <- bytes.Clone(message): // message is a part of a buffer that is reused
		return ""
	default:
		c.queued.Drop(len(message))
		return dropOverflow
	}
}
