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

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// parked is a client's request in flight. The server may send requests to the client before it answers. The client
// receives these requests in an answer, and later repeats the original request with the responses. Until then, the
// original request is parked.
type parked struct {
	of *stateless
	// digest identifies the request. Only a repeated request with the same digest can continue it.
	digest [sha256.Size]byte
	// id and token are the raw id and progress token that the server receives. They are new values, because the clients of
	// one caller can share a session and use the same ids and tokens. clientToken is the client's raw progress token, or
	// nil if the client has sent none.
	id, token, clientToken []byte
	// canAsk is true if the client can receive the server's requests in an answer (MCP 2026-07-28, Multi Round-Trip
	// Requests).
	canAsk        bool
	cancel        context.CancelCauseFunc
	has           *limits.Memory
	done          chan struct{} // closed after answer and err were set
	answer        Answer
	err           error
	questionAdded chan struct{} // receives a value when the server has sent a request
	expiry        *time.Timer   // set while the request waits for the client to repeat it

	mu        sync.Mutex
	events    func([]byte)         // receives messages during a round trip of the client; nil between round trips
	logs      bool                 // true if the client has requested log messages
	questions map[string]*question // unanswered requests from the server, by the names that the client receives
	count     int
}

// question is a request from the server to the client. It contains the raw parts of the request and the whole message.
type question struct {
	id, method, params, raw []byte
	// allowed is true if the policy allows the client to receive the request in the current round trip.
	allowed bool
}

func (p *parked) setReceiver(events func([]byte), logs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events, p.logs = events, logs
}

func (p *parked) handleMessage(raw []byte) {
	m, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err != nil {
		return // the connection has already parsed the message, so this cannot fail
	}
	if m.Kind == jsonrpc.Request {
		if !p.addQuestion(m) {
			p.of.refuse(m.ID.Of(raw))
		}
		return
	}
	if m.Method == mcp.MethodCancelled {
		p.dropQuestion(m.RequestID.Of(raw))
		return
	}
	if isSubscribable(m.Method) { // clients receive list changes through their subscriptions, not with an answer
		p.of.dispatch(context.Background(), raw)
		return
	}
	if at := m.ProgressToken; m.Method == mcp.MethodProgress {
		if p.token == nil || !bytes.Equal(at.Of(raw), p.token) {
			return // the progress is for another request
		}
		if raw, err = jsonrpc.ApplyEdits(raw, jsonrpc.Edit{Span: at, With: p.clientToken}); err != nil {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events != nil && (m.Method != mcp.MethodMessage || p.logs) {
		p.events(raw)
	}
}

func (p *parked) addQuestion(m *jsonrpc.Answer) bool {
	p.of.mu.Lock()
	unclear := p.of.ambiguous && p.of.running > 1
	p.of.mu.Unlock()
	if !p.canAsk || unclear || len(m.Raw) > maxQuestion || !p.has.Add(len(m.Raw)) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.questions) == maxQuestions {
		return false
	}
	p.count++
	own := bytes.Clone(m.Raw) // the buffer of m.Raw is reused for the next message
	p.questions[strconv.Itoa(p.count)] = &question{id: m.ID.Of(own), method: []byte(strconv.Quote(m.Method)), params: m.Params.Of(own), raw: own}
	select {
	case p.questionAdded <- struct{}{}:
	default: // the channel already contains a signal
	}
	return true
}

func (p *parked) dropQuestion(id []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.questions, func(_ string, q *question) bool { return jsonrpc.SameID(q.id, id) })
}

// refuse answers a request from the server with an error, because no client can receive the request.
func (b *stateless) refuse(id []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	// Without this response, the server would wait until its own timeout.
	_ = b.Notify(ctx, Refused(id, mcp.CodeMethodUnknown, NoClientForRequest).inTrace(ctx, nil))
}

// sendResponses sends the client's responses to the server. The server's requests that are still unanswered are
// evaluated again by the policy service.
func (p *parked) sendResponses(ctx context.Context, responses map[string]jsontext.Value) error {
	p.mu.Lock()
	var replies [][]byte
	for name, q := range p.questions {
		result, answered := responses[name]
		if answered && q.allowed {
			replies = append(replies, slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), q.id, []byte(`,"result":`), result, []byte(`}`)))
			delete(p.questions, name)
		}
		q.allowed = false
	}
	p.mu.Unlock()
	parse := jsonrpc.AnswerLimits()
	parse.IDBytes = 1 << 10
	for _, raw := range replies {
		m, err := jsonrpc.Parse(raw, parse)
		if err == nil {
			err = p.of.Notify(ctx, Request{Message: m})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *parked) await(ctx context.Context, req Request) (Answer, error) {
	for {
		select {
		case <-p.done: // the server's unanswered requests no longer matter
			return p.finalAnswer(ctx, req)
		default:
		}
		open, ready := p.decide(ctx, req)
		switch {
		case ctx.Err() != nil: // the client has left and would not receive the state that it needs to continue
		case !ready:
			continue // more requests have arrived during the evaluation
		case open != nil:
			return p.park(req, open)
		}
		select {
		case <-p.done:
		case <-p.questionAdded:
			select { // requests that a server sends together arrive one by one, but are returned together
			case <-p.done:
			case <-ctx.Done():
			case <-time.After(gatherTime):
			}
		case <-ctx.Done():
			p.cancelUnanswered(context.Cause(ctx))
			return Answer{}, sentBefore(context.Cause(ctx))
		}
	}
}

// decide asks the policy service which of the server's requests the client may receive. It returns the allowed requests
// as a JSON object, or nil if there are none. The server receives an error for each request that is not allowed. ready
// is false if more requests have arrived during the evaluation.
func (p *parked) decide(ctx context.Context, req Request) (open []byte, ready bool) {
	p.mu.Lock()
	undecided := make(map[string]*question)
	for name, q := range p.questions {
		if !q.allowed {
			undecided[name] = q
		}
	}
	p.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(undecided), func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) { // in the order of arrival
		q, refused := undecided[name], (*GatewayMessage)(nil)
		if req.May == nil {
			refused = new(Refused(q.id, mcp.CodeMethodUnknown, NoClientForRequest))
		} else {
			refused = req.May(ctx, q.id, q.raw)
		}
		p.mu.Lock()
		if q.allowed = refused == nil; !q.allowed {
			delete(p.questions, name)
		}
		p.mu.Unlock()
		if refused != nil {
			_ = p.of.Notify(ctx, refused.inTrace(ctx, nil)) // without this response, the server would wait until its own timeout
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	asks := make(map[string]map[string]jsontext.Value, len(p.questions))
	for name, q := range p.questions {
		if !q.allowed {
			return nil, false
		}
		asks[name] = map[string]jsontext.Value{"method": q.method, "params": q.params}
		if q.params == nil { // some clients require the optional member for roots/list (the Go SDK 1.8.0)
			asks[name]["params"] = jsontext.Value("{}")
		}
	}
	if len(asks) == 0 {
		return nil, true
	}
	open, err := json.Marshal(asks, json.Deterministic(true))
	if err != nil { // the values were read from JSON, so this cannot fail
		return nil, true
	}
	return open, true
}

// sendCancellation notifies the server that a request is cancelled. It uses a new context, because the caller's context
// is done.
func (b *stateless) sendCancellation(id []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	// Without this notification, the server would continue to work on the cancelled request.
	_ = b.Notify(ctx, Cancelled(id).inTrace(ctx, nil))
}

// notifyTimeout is the timeout for sending a refusal or a cancellation to a server.
const notifyTimeout = 5 * time.Second

// cancelUnanswered cancels a request that no client is waiting for, unless the server has already answered it.
func (p *parked) cancelUnanswered(why error) {
	select {
	case <-p.done:
	default:
		p.cancel(why)
		p.of.sendCancellation(p.id)
		<-p.done
	}
	p.close()
}

// close releases the resources of a request that has ended.
func (p *parked) close() {
	p.cancel(nil)
	p.has.Close()
	p.answer.Message = nil
}

var errParked = fmt.Errorf("%d requests wait, which is the maximum", maxParked)

// park stores a request until its client repeats it. It returns an answer that contains the server's requests to the
// client. open contains these requests as JSON.
func (p *parked) park(req Request, open []byte) (Answer, error) {
	state := rand.Text()
	m, err := jsonrpc.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"%s","inputRequests":%s,"requestState":"%s"}}`, req.ID(), mcp.ResultInputRequired, open, state), jsonrpc.AnswerLimits())
	if err != nil {
		p.cancelUnanswered(ErrCancelled)
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	b := p.of
	b.mu.Lock()
	var full error
	if len(b.parked) >= maxParked || b.closed {
		full = errParked
	} else if full = b.server.waiting.Acquire(&b.accounts, 1); full == nil {
		b.parked[state] = p
		p.expiry = time.AfterFunc(parkedFor, func() {
			if b.resume(state, p.digest) != nil { // true if the client has not repeated the request
				p.cancelUnanswered(ErrCancelled)
			}
		})
	}
	b.mu.Unlock()
	if full != nil {
		p.cancelUnanswered(ErrCancelled)
		return errorAnswer(req, mcp.CodeInternal, "Too many requests wait for this client: "+full.Error()+". Answer or cancel some of them.")
	}
	return Answer{Message: m, Status: http.StatusOK}, nil
}

// finalAnswer returns the server's answer as the answer to the last round trip.
func (p *parked) finalAnswer(ctx context.Context, req Request) (Answer, error) {
	defer p.close()
	if p.err != nil {
		return p.answer, p.err
	}
	m := p.answer.Message
	if m.InputRequests.Present() {
		return Answer{}, fmt.Errorf("%w: it sent inputRequests, which its revision does not have", ErrNoAnswer)
	}
	if req.Room != nil && !p.has.Transfer(req.Room) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, limits.ErrMemory)
	}
	if len(m.Raw) > inlineBytes {
		end, err := req.Room.TimesliceFor(ctx, len(m.Raw))
		if err != nil {
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		defer end()
	}
	m, err := m.WithID(req.ID())
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

// inlineBytes is the maximum size, in bytes, of an answer that is rewritten immediately. Larger answers wait for
// processor time.
const inlineBytes = 64 << 10
