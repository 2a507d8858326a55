package stdio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// eventQueue is the maximum number of messages that wait for the receiver of a request. maxEvent is the maximum size,
	// in bytes, of each of these messages. A message is dropped if it exceeds one of these limits or the principal's
	// memory budget. Otherwise, a slow client would delay other clients.
	eventQueue = 64
	maxEvent   = 256 << 10
	// maxOwed is the maximum number of abandoned requests of a process that are stored. They are stored so that late
	// answers to them are recognized.
	maxOwed = 4096
	// maxAsked is the maximum number of stored requests from a process to its clients.
	maxAsked = 64
)

// pendingCall is a request that the process has not answered yet.
type pendingCall struct {
	proc *process
	m    *jsonrpc.Message
	// permit is the permit of the request, or nil if the request needs no permit. lines keeps the session's lines in
	// order.
	permit upstream.Permit
	lines  *lineOrder
	start  lineStart
	// id is the number that the process receives as the request id and as the progress token.
	id int64
	// client and token are the client's raw id and progress token. token is nil if the request has none.
	client, token []byte
	// events receives the messages that precede the answer. It is nil if the request has no receiver. seen is the number
	// of these messages, and bytes is their total size. Only the goroutine that reads the process's output uses seen and
	// bytes.
	events      chan []byte
	seen, bytes int
	// begun is the start of the current minute. It is used only for requests that can last indefinitely, such as
	// subscriptions, because the limits on messages apply to each minute of such a request.
	begun time.Time
	// room is the memory for the answer, and queued is the memory for the messages in events. Both are nil for a
	// request from the gateway itself.
	room, queued *limits.Memory
	// result receives the answer. It is buffered.
	result chan callResult
}

// callResult is the answer that the process wrote, or an error.
type callResult struct {
	answer *jsonrpc.Answer
	err    error
}

func (c *pendingCall) number() []byte { return strconv.AppendInt(nil, c.id, 10) }

// progressToken returns the progress token that the process receives, or nil if the request has none.
func (c *pendingCall) progressToken() []byte {
	if c.token == nil {
		return nil
	}
	return c.number()
}

// callTable contains the requests in flight. It is safe for concurrent use.
type callTable struct {
	mu   sync.Mutex
	byID map[int64]*pendingCall
	last int64
	// abandoned contains the ids of abandoned requests that are not answered yet.
	abandoned map[int64]struct{}
	// processRequests contains the id keys of requests from the process that wait for a client's response, oldest first.
	processRequests []string
	// greetings is the number of handshake requests (initialize or server/discover) that the process has received.
	greetings int64
	// tools is the number of tool calls. retired is true if the process has served its maximum number of tool calls and
	// receives no more requests.
	tools   int
	retired bool
}

// find returns the request with the given raw id, or nil if there is none.
func (t *callTable) find(raw []byte) *pendingCall {
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// onlyCall returns the request in flight if there is exactly one. Otherwise it returns nil.
func (t *callTable) onlyCall() *pendingCall {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) != 1 {
		return nil
	}
	for _, c := range t.byID {
		return c
	}
	return nil
}

// methodOf returns the method of the request with the given raw id, or "" if there is none.
func (t *callTable) methodOf(id []byte) string {
	if number := jsonrpc.NumberIn(id); number != nil {
		id = number
	}
	if c := t.find(id); c != nil {
		return c.m.Method
	}
	return ""
}

// onlyPending returns the request in flight if it is the only request that the process handles. Otherwise, it returns
// nil. In a shared process, an unanswered abandoned request also counts, because a late answer to it could otherwise
// end another principal's request.
func (t *callTable) onlyPending(shared bool) *pendingCall {
	t.mu.Lock()
	owed := len(t.abandoned)
	t.mu.Unlock()
	if shared && owed > 0 {
		return nil
	}
	return t.onlyCall()
}

// first returns the oldest request in flight that has a receiver for messages, or nil if there is none.
func (t *callTable) first() (first *pendingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.byID {
		if c.events != nil && (first == nil || c.id < first.id) {
			first = c
		}
	}
	return first
}

// addRequest registers a request that the process has sent with the given raw id. It reports whether the id is valid
// and new. If too many requests are registered, the oldest request is removed. The response to the removed request will
// be dropped.
func (t *callTable) addRequest(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := jsonrpc.IDKey(id)
	if key == "" || slices.Contains(t.processRequests, key) {
		return false
	}
	t.processRequests = append(t.processRequests, key)
	if len(t.processRequests) > maxAsked {
		t.processRequests = t.processRequests[1:]
	}
	return true
}

// takeRequest removes the request that the process has sent with the given raw id. It reports whether there was such a
// request.
func (t *callTable) takeRequest(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.processRequests, jsonrpc.IDKey(id))
	if i < 0 {
		return false
	}
	t.processRequests = slices.Delete(t.processRequests, i, i+1)
	return true
}

// hasRequests reports whether the process waits for a client's response.
func (t *callTable) hasRequests() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.processRequests) > 0
}

// hasCalls reports whether the process has received any request other than the handshake requests (initialize or
// server/discover).
func (t *callTable) hasCalls() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last > t.greetings
}

// countGreeting counts the next request as a handshake request (initialize or server/discover).
func (t *callTable) countGreeting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.greetings++
}

// retire makes the table refuse further requests if no request is in flight and the process has served maxCalls tool
// calls. If maxCalls is 0, retire does nothing. It reports whether this call has retired the process.
func (t *callTable) retire(maxCalls int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if maxCalls == 0 || t.tools < maxCalls || len(t.byID) > 0 || t.retired {
		return false
	}
	t.retired = true
	return true
}

func (t *callTable) isRetired() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.retired
}

func (t *callTable) remove(c *pendingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, c.id)
}

// abandon removes a request and stores its id, because the answer might still arrive.
func (t *callTable) abandon(c *pendingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[c.id] != c {
		return // the request was already answered
	}
	delete(t.byID, c.id)
	for id := range t.abandoned {
		if len(t.abandoned) < maxOwed {
			break
		}
		delete(t.abandoned, id)
	}
	t.abandoned[c.id] = struct{}{}
}

// wasAbandoned reports whether the request with the given raw id was abandoned, and removes the id.
func (t *callTable) wasAbandoned(raw []byte) bool {
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, owed := t.abandoned[id]
	delete(t.abandoned, id)
	return owed
}

// register assigns an id to a request. It returns nil if the process is retired. The caller must pass the returned
// request to [process.do].
func (p *process) register(m *jsonrpc.Message, memory *limits.Memory, events bool) *pendingCall {
	c := &pendingCall{
		proc:   p,
		m:      m,
		room:   memory,
		queued: memory.Sibling(),
		client: m.ID.Of(m.Raw),
		token:  m.Meta.ProgressToken.Of(m.Raw),
		result: make(chan callResult, 1),
	}
	if events {
		c.events = make(chan []byte, eventQueue)
	}
	t := &p.calls
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.retired {
		return nil
	}
	if m.Method == mcp.MethodToolsCall {
		t.tools++
	}
	t.last++
	c.id = t.last
	t.byID[c.id] = c
	return c
}

// line returns the request as one line for the process.
func (c *pendingCall) line() ([]byte, error) {
	edits := []jsonrpc.Edit{{Span: c.m.ID, With: c.number()}}
	if c.token != nil {
		edits = append(edits, jsonrpc.Edit{Span: c.m.Meta.ProgressToken, With: c.number()})
	}
	if c.m.Method == mcp.MethodInitialize && c.m.Capabilities.Present() && c.proc.server.cfg.Shared { // a shared process serves several clients, so it does not receive the capabilities of one client
		edits = append(edits, jsonrpc.Edit{Span: c.m.Capabilities, With: []byte("{}")})
	}
	return frame(c.m.Raw, edits...)
}

// do sends a request and returns the answer. In the answer, the client's id replaces the id that the process has
// received.
func (p *process) do(ctx context.Context, c *pendingCall, events func([]byte)) (*jsonrpc.Answer, error) {
	defer c.queued.Close()
	defer p.refuseQueued(c.events) // at this point, no other message can be queued
	defer p.calls.abandon(c)
	line, err := c.line()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	if err := p.sendOutgoing(ctx, c.lines, newOutgoing(line, c.permit, &c.start)); err != nil {
		if errors.Is(err, upstream.ErrNeverSent) {
			p.calls.remove(c) // no answer will arrive
		}
		p.abandon(ctx, c, err)
		return nil, err
	}
	answer, err := c.await(ctx, events)
	if err != nil {
		p.abandon(ctx, c, err)
		return nil, err
	}
	if answer, err = c.withClientID(ctx, answer); err != nil {
		return nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, err)
	}
	return answer, nil
}

// withClientID returns an answer with the client's id. Before it copies a large answer, it waits for processor time.
func (c *pendingCall) withClientID(ctx context.Context, a *jsonrpc.Answer) (*jsonrpc.Answer, error) {
	end, err := c.room.TimesliceFor(ctx, len(a.Raw))
	if err != nil {
		return nil, err
	}
	defer end()
	addressed, err := a.WithID(c.client)
	if err != nil {
		return nil, err
	}
	c.room.Settle(len(addressed.Raw))
	return addressed, nil
}

// await waits for the answer and returns it. In the meantime, it calls events with each message that arrives.
func (c *pendingCall) await(ctx context.Context, events func([]byte)) (*jsonrpc.Answer, error) {
	for {
		select {
		case message := <-c.events:
			events(message)
			c.queued.Drop(len(message))
			continue
		case r := <-c.result:
			return c.drainEvents(r, events)
		case <-ctx.Done():
		case <-c.proc.done:
		}
		// If the answer arrived before ctx was done or the process ended, return the answer.
		select {
		case r := <-c.result:
			return c.drainEvents(r, events)
		default:
		}
		if ctx.Err() != nil {
			return nil, c.proc.server.waitError(ctx)
		}
		return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, c.proc.cause)
	}
}

// drainEvents calls events with each queued message, and then returns the answer.
func (c *pendingCall) drainEvents(r callResult, events func([]byte)) (*jsonrpc.Answer, error) {
	for {
		select {
		case message := <-c.events:
			events(message)
		default:
			return r.answer, r.err
		}
	}
}

// recycle terminates the process if the process has served its maximum number of tool calls.
func (p *process) recycle() {
	if !p.isGone() && p.calls.retire(p.server.cfg.Recycle) {
		p.end(errRecycled)
	}
}

// abandon sends the process a cancellation of a request for which the caller no longer waits. It sends no cancellation
// for initialize, because MCP forbids that, and none if the client has already sent one.
func (p *process) abandon(ctx context.Context, c *pendingCall, err error) {
	if errors.Is(err, upstream.ErrNeverSent) || c.m.Method == mcp.MethodInitialize || errors.Is(context.Cause(ctx), upstream.ErrCancelled) {
		return
	}
	line := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), c.number()...)
	p.reply(append(line, "}}\n"...))
}

// reply puts a line into the queue without waiting until it is written, and reports whether it was queued. If the queue
// is full, the line is dropped.
func (p *process) reply(line []byte) bool {
	select {
	case p.replies <- line:
		return true
	default:
		return false
	}
}
