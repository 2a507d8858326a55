package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// parked is a request on its way to a server that may ask.
type parked struct {
	of *stateless
	// digest is of what it asks for: another request does not go on with it.
	digest [sha256.Size]byte
	// id and token are those that the server knows, raw, and shown the client's token; absent for none.
	// Clients of a caller share a session, and may use the same ones.
	id, token, shown []byte
	// asks says that the client can be asked in the answer.
	asks   bool
	cancel context.CancelCauseFunc
	has    *room.Holding
	done   chan struct{} // closed once the answer is there
	answer Answer
	err    error
	asked  chan struct{} // has something once the server asks
	expiry *time.Timer   // while it waits for its client

	mu        sync.Mutex
	events    func([]byte)         // of the client that waits now; nil for nobody
	logs      bool                 // whether it wants lines of the log
	questions map[string]*question // not answered yet, by the names that the client knows them by
	count     int
}

// question is what a server asks, under its id and as a whole.
type question struct {
	id, method, params, raw []byte
	// may says that the client may be asked, as was decided for the leg at hand.
	may bool
}

// attend sets who takes what the server says now.
func (p *parked) attend(events func([]byte), logs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events, p.logs = events, logs
}

// event takes what the server says before its answer.
func (p *parked) event(raw []byte) {
	m, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err != nil {
		return // the upstream reader let it through, so this can't be; nothing is lost by caution
	}
	if m.Kind == gate.Request {
		if !p.takes(m) {
			p.of.refuse(m.ID.Of(raw))
		}
		return
	}
	if m.Method == mcp.MethodCancelled {
		p.takeBack(m.RequestID.Of(raw))
		return
	}
	if isChange(m.Method) { // which a request's own answer does not tell
		p.of.tell(context.Background(), raw)
		return
	}
	if at := m.ProgressToken; m.Method == mcp.MethodProgress {
		if p.token == nil || !bytes.Equal(at.Of(raw), p.token) {
			return // of nothing that the client asked for
		}
		if raw, err = gate.Splice(raw, gate.Edit{Span: at, With: p.shown}); err != nil {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events != nil && (m.Method != mcp.MethodMessage || p.logs) {
		p.events(raw)
	}
}

// takes notes what the server asks; false where the client can't be asked.
func (p *parked) takes(m *gate.Answer) bool {
	p.of.mu.Lock()
	unclear := p.of.guesses && p.of.running > 1
	p.of.mu.Unlock()
	if !p.asks || unclear || len(m.Raw) > maxQuestion || !p.has.Add(len(m.Raw)) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.questions) == maxQuestions {
		return false
	}
	p.count++
	own := bytes.Clone(m.Raw) // what it came in is the next message's
	p.questions[strconv.Itoa(p.count)] = &question{id: m.ID.Of(own), method: []byte(strconv.Quote(m.Method)), params: m.Params.Of(own), raw: own}
	select {
	case p.asked <- struct{}{}:
	default: // it is known
	}
	return true
}

// takeBack drops what the server does not ask any more.
func (p *parked) takeBack(id []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.questions, func(_ string, q *question) bool { return gate.SameID(q.id, id) })
}

// refuse tells the server that nobody takes what it asks.
func (b *stateless) refuse(id []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_ = b.Notify(ctx, Refused(id, mcp.CodeMethodUnknown, NotCarried).in(ctx, nil)) // a server that does not hear it waits for its own time
}

// reply gives the server the client's answers to what it was asked. What it was not is decided again.
func (p *parked) reply(ctx context.Context, responses map[string]jsontext.Value) error {
	p.mu.Lock()
	var replies [][]byte
	for name, q := range p.questions {
		result, answered := responses[name]
		if answered && q.may {
			replies = append(replies, slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), q.id, []byte(`,"result":`), result, []byte(`}`)))
			delete(p.questions, name)
		}
		q.may = false
	}
	p.mu.Unlock()
	limits := gate.AnswerLimits()
	limits.IDBytes = 1 << 10
	for _, raw := range replies {
		m, err := gate.Parse(raw, limits)
		if err == nil {
			err = p.of.Notify(ctx, Request{Message: m})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits for the answer, or for what the server asks before it.
func (p *parked) await(ctx context.Context, req Request) (Answer, error) {
	for {
		select {
		case <-p.done: // then nothing that it has asked counts
			return p.whole(ctx, req)
		default:
		}
		open, ready := p.decide(ctx, req)
		switch {
		case ctx.Err() != nil: // nobody would get the state
		case !ready:
			continue // more has come meanwhile
		case open != nil:
			return p.park(req, open)
		}
		select {
		case <-p.done:
		case <-p.asked:
			select { // what is asked at once comes one after the other, and is one answer
			case <-p.done:
			case <-ctx.Done():
			case <-time.After(askedTogether):
			}
		case <-ctx.Done():
			p.end(context.Cause(ctx))
			return Answer{}, sentBefore(context.Cause(ctx))
		}
	}
}

// decide has it decided which questions the client may be asked, and returns them, as an object; nil
// for none. The others the server gets refused, and goes on. It is not ready where more has come.
func (p *parked) decide(ctx context.Context, req Request) (open []byte, ready bool) {
	p.mu.Lock()
	undecided := make(map[string]*question)
	for name, q := range p.questions {
		if !q.may {
			undecided[name] = q
		}
	}
	p.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(undecided), func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) { // as they came
		q, refused := undecided[name], (*Own)(nil)
		if req.May == nil {
			refused = new(Refused(q.id, mcp.CodeMethodUnknown, NotCarried))
		} else {
			refused = req.May(ctx, q.id, q.raw)
		}
		p.mu.Lock()
		if q.may = refused == nil; !q.may {
			delete(p.questions, name)
		}
		p.mu.Unlock()
		if refused != nil {
			_ = p.of.Notify(ctx, refused.in(ctx, nil)) // a server that does not hear it waits for its own time
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	asks := make(map[string]map[string]jsontext.Value, len(p.questions))
	for name, q := range p.questions {
		if !q.may {
			return nil, false
		}
		asks[name] = map[string]jsontext.Value{"method": q.method, "params": q.params}
		if q.params == nil { // then clients may fail that read what is optional (the Go SDK 1.8.0, roots/list)
			asks[name]["params"] = jsontext.Value("{}")
		}
	}
	if len(asks) == 0 {
		return nil, true
	}
	open, err := json.Marshal(asks, json.Deterministic(true))
	if err != nil { // they were read out of JSON, so this can't be
		return nil, true
	}
	return open, true
}

// giveUp tells the server that nobody waits for a request any more.
func (b *stateless) giveUp(id []byte) { // in its own time: who gives up has gone
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_ = b.Notify(ctx, Cancelled(id).in(ctx, nil)) // a server that does not hear it works in vain
}

// notifyTimeout bounds telling a server that a request was given up.
const notifyTimeout = 5 * time.Second

// end ends a request that nobody waits for, unless its answer is there.
func (p *parked) end(why error) {
	select {
	case <-p.done:
	default:
		p.cancel(why)
		p.of.giveUp(p.id)
		<-p.done
	}
	p.close()
}

// close lets go of what a request that has ended holds.
func (p *parked) close() {
	p.cancel(nil)
	p.has.Close()
	p.answer.Message = nil
}

var errParked = fmt.Errorf("it has %d of %d here", maxParked, maxParked)

// park keeps a request until its client makes it again, and answers with what the server asks.
func (p *parked) park(req Request, open []byte) (Answer, error) {
	state := rand.Text()
	m, err := gate.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"%s","inputRequests":%s,"requestState":"%s"}}`, req.ID(), mcp.ResultInputRequired, open, state), gate.AnswerLimits())
	if err != nil {
		p.end(ErrCancelled)
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	b := p.of
	b.mu.Lock()
	var full error
	if len(b.parked) >= maxParked || b.closed {
		full = errParked
	} else if full = b.server.waiting.Take(&b.accounts, 1); full == nil {
		b.parked[state] = p
		p.expiry = time.AfterFunc(parkedFor, func() {
			if b.resume(state, p.digest) != nil { // nobody has come back
				p.end(ErrCancelled)
			}
		})
	}
	b.mu.Unlock()
	if full != nil {
		p.end(ErrCancelled)
		return failed(req, mcp.CodeInternal, "Too many requests wait for this client: "+full.Error()+". Answer or give up some of them.")
	}
	return Answer{Message: m, Status: http.StatusOK}, nil
}

// whole is the answer, for who waits for it now.
func (p *parked) whole(ctx context.Context, req Request) (Answer, error) {
	defer p.close()
	if p.err != nil {
		return p.answer, p.err
	}
	m := p.answer.Message
	if m.InputRequests.Present() {
		return Answer{}, fmt.Errorf("%w: it asks in a way that its revision does not have", ErrNoAnswer)
	}
	if req.Room != nil && !p.has.Give(req.Room) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, room.ErrFull)
	}
	if len(m.Raw) > fewBytes {
		end, err := req.Room.TurnFor(ctx, len(m.Raw))
		if err != nil {
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		defer end()
	}
	m, err := m.Addressed(req.ID())
	if err == nil {
		m, err = Complete(m, req.Method())
	}
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	status := http.StatusOK
	if HasCode(m, mcp.CodeMethodUnknown) {
		status = http.StatusNotFound
	}
	return Answer{Message: m, Status: status}, nil
}

// fewBytes is how large an answer may be that is written again without a turn.
const fewBytes = 64 << 10
