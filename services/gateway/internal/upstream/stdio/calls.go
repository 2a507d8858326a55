package stdio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// eventQueue is how many messages may wait for the reader of a request, and
	// maxEvent how large each may be, in bytes. What does not fit, here or in the
	// share of its principal, is dropped: a slow client must not hold up the others.
	eventQueue = 64
	maxEvent   = 256 << 10
	// maxOwed is how many answers of a process nobody waits for any more and are known to
	// have been asked for.
	maxOwed = 4096
	// maxAsked is how many requests of a process's own are known to have been asked.
	maxAsked = 64
)

// pendingCall is a request that a process has not answered.
type pendingCall struct {
	proc *process
	m    *gate.Message
	// id is the id that the process sees. It serves as the progress token too.
	id int64
	// client and token are the client's own, raw; token is nil if it gave none.
	client, token []byte
	// events is nil if nobody wants them. seen counts them, and bytes theirs, for the
	// reader of the process alone.
	events      chan []byte
	seen, bytes int
	// begun is when the minute at hand of a request began that is not meant to end.
	begun time.Time
	// room is what the answer takes, and queued what waits in events; nil for a request
	// of the gateway's own.
	room, queued *room.Holding
	// result receives the answer. It has room for it.
	result chan callResult
}

// callResult is the answer as the process wrote it.
type callResult struct {
	answer *gate.Answer
	err    error
}

// number returns the id as JSON.
func (c *pendingCall) number() []byte { return strconv.AppendInt(nil, c.id, 10) }

// progressToken returns the token as the process sees it; nil if there is none.
func (c *pendingCall) progressToken() []byte {
	if c.token == nil {
		return nil
	}
	return c.number()
}

// callTable holds the requests in flight. It is safe for concurrent use.
type callTable struct {
	mu   sync.Mutex
	byID map[int64]*pendingCall
	last int64
	// owed are requests that were given up, each until its answer came.
	owed map[int64]struct{}
	// asked are the keys of the ids of the process's own requests that a client was to answer,
	// the last at the end.
	asked []string
	// greetings is how many of the requests were greetings.
	greetings int64
	// tools counts the calls of tools, and retired says that there were enough: no
	// more requests come in.
	tools   int
	retired bool
}

// find returns the request with a raw id, nil if there is none.
func (t *callTable) find(raw []byte) *pendingCall {
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// only returns the request in flight if there is just one.
func (t *callTable) only() *pendingCall {
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

// methodOf returns the method of the request that the id of an answer, as raw JSON, belongs to; empty if none does.
func (t *callTable) methodOf(id []byte) string {
	if number := gate.NumberIn(id); number != nil {
		id = number
	}
	if c := t.find(id); c != nil {
		return c.m.Method
	}
	return ""
}

// alone returns the request in flight if the process works on no other. Of a shared process, requests that were given
// up count until they are answered: another principal's must not end this one.
func (t *callTable) alone(shared bool) *pendingCall {
	t.mu.Lock()
	owed := len(t.owed)
	t.mu.Unlock()
	if shared && owed > 0 {
		return nil
	}
	return t.only()
}

// first returns the request in flight that was made first and whose events somebody takes; nil
// for none.
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

// ask notes a request of the process's own with this raw id, and reports whether there is none like
// it. Of too many the first are forgotten: nobody answers a process that floods.
func (t *callTable) ask(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := gate.IDKey(id)
	if key == "" || slices.Contains(t.asked, key) {
		return false
	}
	t.asked = append(t.asked, key)
	if len(t.asked) > maxAsked {
		t.asked = t.asked[1:]
	}
	return true
}

// answered tells, once, whether the process has asked with this raw id.
func (t *callTable) answered(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.asked, gate.IDKey(id))
	if i < 0 {
		return false
	}
	t.asked = slices.Delete(t.asked, i, i+1)
	return true
}

// asks reports whether the process waits for a client.
func (t *callTable) asks() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.asked) > 0
}

// begun reports whether the process was sent a request beside greetings.
func (t *callTable) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last > t.greetings
}

// greets notes that the next request is a greeting.
func (t *callTable) greets() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.greetings++
}

// retire lets no more requests in once there were so many calls of tools, unless
// some are in flight. It reports whether it was now.
func (t *callTable) retire(after int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after == 0 || t.tools < after || len(t.byID) > 0 || t.retired {
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

// giveUp removes a request whose answer may still come.
func (t *callTable) giveUp(c *pendingCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID[c.id] != c {
		return // it has its answer
	}
	delete(t.byID, c.id)
	for id := range t.owed {
		if len(t.owed) < maxOwed {
			break
		}
		delete(t.owed, id)
	}
	t.owed[c.id] = struct{}{}
}

// owes tells, once, whether the request with a raw id was given up.
func (t *callTable) owes(raw []byte) bool {
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, owed := t.owed[id]
	delete(t.owed, id)
	return owed
}

// register gives a request its id; it returns nil where the process has been
// retired. The caller goes on with do.
func (p *process) register(m *gate.Message, has *room.Holding, events bool) *pendingCall {
	c := &pendingCall{
		proc:   p,
		m:      m,
		room:   has,
		queued: has.Beside(),
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

// line returns the request as the process sees it.
func (c *pendingCall) line() ([]byte, error) {
	edits := []gate.Edit{{Span: c.m.ID, With: c.number()}}
	if c.token != nil {
		edits = append(edits, gate.Edit{Span: c.m.Meta.ProgressToken, With: c.number()})
	}
	if c.m.Method == mcp.MethodInitialize && c.m.Capabilities.Present() && c.proc.server.cfg.Shared { // no client is its only one
		edits = append(edits, gate.Edit{Span: c.m.Capabilities, With: []byte("{}")})
	}
	return frame(c.m.Raw, edits...)
}

// do sends a request and returns the answer to it, with the client's id.
func (p *process) do(ctx context.Context, c *pendingCall, events func([]byte)) (*gate.Answer, error) {
	defer c.queued.Close()
	defer p.refuseQueued(c.events) // once nothing more is queued
	defer p.calls.giveUp(c)
	line, err := c.line()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	if err := p.send(ctx, line); err != nil {
		p.abandon(ctx, c, err)
		return nil, err
	}
	answer, err := c.await(ctx, events)
	if err != nil {
		p.abandon(ctx, c, err)
		return nil, err
	}
	if answer, err = c.readdress(ctx, answer); err != nil {
		return nil, fmt.Errorf("%w: server %q: %w", upstream.ErrNoAnswer, p.server.cfg.Name, err)
	}
	return answer, nil
}

// readdress gives an answer the client's id. A large one it copies in turns.
func (c *pendingCall) readdress(ctx context.Context, a *gate.Answer) (*gate.Answer, error) {
	end, err := c.room.TurnFor(ctx, len(a.Raw))
	if err != nil {
		return nil, err
	}
	defer end()
	addressed, err := a.Addressed(c.client)
	if err != nil {
		return nil, err
	}
	c.room.Keep(len(addressed.Raw))
	return addressed, nil
}

// await waits for the answer and passes on what comes before it.
func (c *pendingCall) await(ctx context.Context, events func([]byte)) (*gate.Answer, error) {
	for {
		select {
		case message := <-c.events:
			events(message)
			c.queued.Drop(len(message))
			continue
		case r := <-c.result:
			return c.settled(r, events)
		case <-ctx.Done():
		case <-c.proc.done:
		}
		// The answer may have come at the same time, and to know beats not to.
		select {
		case r := <-c.result:
			return c.settled(r, events)
		default:
		}
		if ctx.Err() != nil {
			return nil, c.proc.server.gaveUp(ctx)
		}
		return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, c.proc.cause)
	}
}

// settled passes on what came before the answer.
func (c *pendingCall) settled(r callResult, events func([]byte)) (*gate.Answer, error) {
	for {
		select {
		case message := <-c.events:
			events(message)
		default:
			return r.answer, r.err
		}
	}
}

// recycle ends the process once it has served enough.
func (p *process) recycle() {
	if !p.isGone() && p.calls.retire(p.server.cfg.Recycle) {
		p.end(errRecycled)
	}
}

// abandon tells the process that nobody waits for an answer any more. MCP does
// not allow that for initialize, and a client that has cancelled has said it
// already.
func (p *process) abandon(ctx context.Context, c *pendingCall, err error) {
	if errors.Is(err, upstream.ErrNeverSent) || c.m.Method == mcp.MethodInitialize || errors.Is(context.Cause(ctx), upstream.ErrCancelled) {
		return
	}
	line := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), c.number()...)
	p.reply(append(line, "}}\n"...))
}

// reply queues a line that nobody waits for; if there is no room it is lost. It
// reports whether there was room.
func (p *process) reply(line []byte) bool {
	select {
	case p.replies <- line:
		return true
	default:
		return false
	}
}
