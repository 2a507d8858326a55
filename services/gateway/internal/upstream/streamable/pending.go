package streamable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// pendingRequest is a request that is not answered yet. On the stream, number is used instead of the client's id and
// progress token. Numbers are unique, so a late message for one request can't be mistaken for a message for another
// request.
type pendingRequest struct {
	number int64
	method string
	// client and token are the raw id and progress token from the client. token is empty if the request has none.
	client, token []byte
	room          *limits.Memory
	events        *queue // nil if the request has no receiver for events
	answer        chan answered
}

func (w *pendingRequest) id() []byte { return strconv.AppendInt(nil, w.number, 10) }

// queue contains messages that wait for one receiver. Their size is charged to the receiver's memory budget.
type queue struct {
	has      *limits.Memory
	messages chan []byte
}

func newQueue(of *limits.Memory) *queue {
	return &queue{of.Sibling(), make(chan []byte, queued)}
}

// put queues a message, and reports whether there was enough memory and a free slot.
func (q *queue) put(message []byte) bool {
	if len(message) > maxQueued || !q.has.Add(len(message)) {
		return false
	}
	select {
	case q.messages <- message:
		return true
	default:
		q.has.Drop(len(message))
		return false
	}
}

func (q *queue) release(message []byte) { q.has.Drop(len(message)) }

type answered struct {
	message *jsonrpc.Answer
	err     error
}

// deliverAnswer passes an answer and its memory to its request, and reports whether a request was waiting for the
// answer.
func (l *link) deliverAnswer(m *jsonrpc.Answer) bool {
	id := m.ID.Of(m.Raw)
	w := l.remove(func(w *pendingRequest) bool { return w.hasID(id) })
	switch {
	case w == nil:
		return l.failByLooseID(jsonrpc.Sketch{ID: id, Result: m.Result.Present(), Error: m.Error.Present()})
	case upstream.IsForged(m):
		w.answer <- answered{err: upstream.ErrForged}
	case !l.has.Transfer(w.room):
		w.answer <- answered{err: limits.ErrMemory}
	default:
		w.answer <- answered{message: m}
	}
	return true
}

// hasID reports whether the raw id in an answer is the request's number, either as a JSON number or as a decimal
// string.
func (w *pendingRequest) hasID(id []byte) bool {
	return bytes.Equal(id, w.id()) || bytes.Equal(jsonrpc.NumberIn(id), w.id())
}

func (l *link) methodOf(id []byte) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		if w.hasID(id) {
			return w.method
		}
	}
	return ""
}

// failUnreadable fails the request to which an unreadable message seems to belong. It reports whether there is such a
// request.
func (l *link) failUnreadable(data []byte, err error) bool {
	s, is := jsonrpc.SketchOf(data)
	if !is {
		return false
	}
	if w := l.remove(func(w *pendingRequest) bool { return w.hasID(s.ID) }); w != nil {
		w.answer <- answered{err: upstream.AsAnswerError(err)}
		return true
	}
	return l.failByLooseID(s)
}

// failByLooseID handles an answer whose id matches no request. If the id is a request's id in another form, this
// request fails. If the answer is an error without an id and only one request is waiting, this request fails.
// failByLooseID reports whether a request has failed.
func (l *link) failByLooseID(s jsonrpc.Sketch) bool {
	why := upstream.ErrOtherID
	n, isNumber := jsonrpc.Integer(s.ID)
	w := l.remove(func(w *pendingRequest) bool { return isNumber && w.number == n })
	if w == nil && (s.ID == nil || string(s.ID) == "null") && s.Error && !s.Result {
		why = upstream.ErrNoID
		l.mu.Lock()
		alone := len(l.waiting) == 1
		l.mu.Unlock()
		if alone {
			w = l.remove(anyRequest)
		}
	}
	if w == nil {
		return false
	}
	w.answer <- answered{err: why}
	return true
}

// remove removes the first waiting request that matches and returns it. It returns nil if no request matches.
func (l *link) remove(is func(*pendingRequest) bool) *pendingRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.waiting {
		if is(w) {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			return w
		}
	}
	return nil
}

// deliver queues a message for its receiver, and reports whether this succeeded. A progress notification is delivered
// to its request. Other messages do not say to which request they belong. If only one request receives events, it
// receives the message. Otherwise, the listener receives the message. If there is no listener, the first request that
// receives events gets it.
func (l *link) deliver(m *jsonrpc.Answer) bool {
	if m.Method == mcp.MethodProgress {
		return l.deliverProgress(m)
	}
	message := bytes.Clone(m.Raw)
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.listenerQueue
	var all []*queue
	for _, w := range l.waiting {
		if w.events != nil {
			all = append(all, w.events)
		}
	}
	if len(all) == 1 || to == nil && len(all) > 0 {
		to = all[0]
	}
	return to != nil && to.put(message)
}

// deliverProgress queues a progress notification for its request. It restores the client's progress token.
func (l *link) deliverProgress(m *jsonrpc.Answer) bool {
	number, err := strconv.ParseInt(string(m.ProgressToken.Of(m.Raw)), 10, 64)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		if w.number == number && w.events != nil && len(w.token) > 0 {
			message, err := jsonrpc.ApplyEdits(m.Raw, jsonrpc.Edit{Span: m.ProgressToken, With: w.token})
			return err == nil && w.events.put(message)
		}
	}
	return false
}

// close refuses the server's requests that remain in a queue, and releases the memory of the queue. After the call, no
// message may be added to the queue.
func (l *link) close(q *queue) {
	if q == nil {
		return
	}
	defer q.has.Close()
	for {
		select {
		case message := <-q.messages:
			if m, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits()); err == nil && m.Kind == jsonrpc.Request {
				l.refuse(m)
			}
		default:
			return
		}
	}
}

func (l *link) fail(err error) {
	for w := l.remove(anyRequest); w != nil; w = l.remove(anyRequest) {
		w.answer <- answered{err: err}
	}
}

func anyRequest(*pendingRequest) bool { return true }

// request posts a request and waits for the answer on the stream. The answer can arrive before the POST request has
// ended.
func (l *link) request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	w := &pendingRequest{method: req.Method(), client: bytes.Clone(req.ID()), token: bytes.Clone(req.ProgressToken()), room: req.Room, answer: make(chan answered, 1)}
	if events != nil {
		w.events = newQueue(req.Room)
	}
	if err := l.wait(w); err != nil {
		return upstream.Answer{}, err
	}
	defer func() {
		l.remove(func(other *pendingRequest) bool { return other == w })
		l.close(w.events)
	}()
	body, err := w.body(req)
	if err != nil {
		return upstream.Answer{}, err
	}
	posting, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan error, 1)
	l.server.links.Go(func() { sent <- l.send(posting, req, body) })
	var messages chan []byte
	if w.events != nil {
		messages = w.events.messages
	}
	take := func(message []byte) {
		w.events.release(message)
		events(message)
	}
	for {
		select {
		case message := <-messages:
			take(message)
		case a := <-w.answer:
			for len(messages) > 0 { // deliver the messages that arrived before the answer
				take(<-messages)
			}
			return l.result(w, a)
		case err := <-sent:
			if sent = nil; err == nil {
				continue
			}
			if w := l.remove(func(other *pendingRequest) bool { return other == w }); w == nil { // the answer has already arrived
				continue
			}
			return upstream.Answer{Status: 0}, err
		case <-ctx.Done():
			if l.remove(func(other *pendingRequest) bool { return other == w }) == nil { // the answer has already arrived
				return l.result(w, <-w.answer)
			}
			class := upstream.ErrNoAnswer
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				class = upstream.ErrTimeout
			}
			return upstream.Answer{}, fmt.Errorf("%w: %s: %w", class, l.server.name, context.Cause(ctx))
		}
	}
}

// result returns the result of a request. If there is an answer, it contains the client's id.
func (l *link) result(w *pendingRequest, a answered) (upstream.Answer, error) {
	if a.err == nil {
		a.message, a.err = a.message.WithID(w.client)
	}
	if a.err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, a.err)
	}
	w.room.Settle(cap(a.message.Raw))
	return upstream.Answer{Message: a.message, Status: http.StatusOK}, nil
}

func (w *pendingRequest) body(req upstream.Request) ([]byte, error) {
	edits := []jsonrpc.Edit{{Span: req.Message.ID, With: w.id()}}
	if len(w.token) > 0 {
		edits = append(edits, jsonrpc.Edit{Span: req.Message.Meta.ProgressToken, With: w.id()})
	}
	body, err := jsonrpc.ApplyEdits(req.Body(), edits...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	return body, nil
}

// notify posts a notification, or the response to a server's request. In a cancellation, it replaces the client's
// request id with the number that is used on the stream. If the request has already ended, it drops the cancellation.
func (l *link) notify(ctx context.Context, req upstream.Request) error {
	body := req.Body()
	if req.Method() == mcp.MethodCancelled {
		id := req.Message.RequestID
		l.mu.Lock()
		i := slices.IndexFunc(l.waiting, func(w *pendingRequest) bool { return jsonrpc.SameID(w.client, id.Of(req.Body())) })
		var number []byte
		if i >= 0 {
			number = l.waiting[i].id()
		}
		l.mu.Unlock()
		if number == nil {
			return nil
		}
		var err error
		if body, err = jsonrpc.ApplyEdits(body, jsonrpc.Edit{Span: id, With: number}); err != nil {
			return fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
		}
	}
	return l.send(ctx, req, body)
}

func (l *link) wait(w *pendingRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all.Err() != nil {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, l.server.name, errLost)
	}
	l.last++
	w.number = l.last
	l.waiting = append(l.waiting, w)
	return nil
}
