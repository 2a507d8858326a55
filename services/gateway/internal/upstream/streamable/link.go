package streamable

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wire"
)

const (
	// endpointTimeout is how long a server may take to say where messages are to be posted: it is
	// the first that it says.
	endpointTimeout = 5 * time.Second
	// maxEndpoint is how long the place may be to which a server wants messages posted, in bytes.
	maxEndpoint = 4 << 10
	// queued is how many messages may wait for who takes them, and maxQueued how large each may
	// be, in bytes. What does not fit is dropped: a slow client must not hold up the answers.
	queued    = 64
	maxQueued = 256 << 10
)

// A link is one stream of a server over HTTP+SSE, and what waits for something on it: all that the
// server says comes there, and all that it is told is posted (MCP 2024-11-05, Transports, HTTP
// with SSE). It is safe for concurrent use.
type link struct {
	server *Transport
	// all ends with the stream, and end ends it; ended is closed once nobody reads it any more.
	all   context.Context //nolint:containedctx // it is the stream's, which outlives requests
	end   context.CancelCauseFunc
	ended chan struct{}
	// post is the head of what is posted.
	post *wire.Head
	// has is what the message takes that is read.
	has *room.Holding
	// version is the revision that was agreed on; nil before that.
	version atomic.Pointer[string]
	// replies are the gateway's own answers to what the server asks, until they are posted.
	replies chan upstream.Request

	mu      sync.Mutex
	last    int64      // the number of the last request
	waiting []*waiting // in the order in which they were sent
	heard   *queue     // of who listens; nil where nobody does
	dropped int        // messages that could not be read
}

// waiting is a request without an answer. Its id and the token of its progress are a number of the
// gateway's on the stream: what comes late for one must not be taken for another's.
type waiting struct {
	number int64
	// client and token are the client's own, raw; token is empty where there is none.
	client, token []byte
	room          *room.Holding
	events        *queue // nil where nobody takes any
	answer        chan answered
}

// id is the number as JSON.
func (w *waiting) id() []byte { return strconv.AppendInt(nil, w.number, 10) }

// queue is what waits for who takes it, in their room.
type queue struct {
	has      *room.Holding
	messages chan []byte
}

func newQueue(of *room.Holding) *queue {
	return &queue{of.Beside(), make(chan []byte, queued)}
}

// put queues a message, and tells whether there was room for it.
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

// took notes that a message was taken.
func (q *queue) took(message []byte) { q.has.Drop(len(message)) }

// answered is what came of it.
type answered struct {
	message *gate.Answer
	err     error
}

// dial opens a stream, and waits for the place to which messages are to be posted.
func (s *Transport) dial(ctx context.Context, has *room.Holding) (*link, error) {
	l := &link{server: s, has: has.Beside(), ended: make(chan struct{}), replies: make(chan upstream.Request, queued)}
	l.all, l.end = context.WithCancelCause(s.all)
	late := time.AfterFunc(endpointTimeout, func() { l.end(context.DeadlineExceeded) })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })()
	resp, err := s.wire.Send(l.all, s.get, nil, nil)
	if err != nil {
		l.end(err)
		return nil, s.neverSent(err)
	}
	if resp.StatusCode != http.StatusOK || contentType(resp) != typeEvents {
		l.end(upstream.ErrClosed)
		why := upstream.ErrNoStream // for now
		if resp.StatusCode == http.StatusOK || (upstream.Answer{Status: resp.StatusCode}).Refuses() {
			why = errNotOlder
		}
		return nil, errors.Join(fmt.Errorf("%w: %w: %s answered %d to who wants a stream", upstream.ErrNeverSent, why, s.name, resp.StatusCode), resp.Body.Close())
	}
	stream := &eventReader{data: intake.New(l.all, l.has, upstream.MaxMessage)}
	stream.reads(resp.Body)
	place, err := stream.named("endpoint")
	if err == nil {
		l.post, err = s.endpoint(place)
	}
	if err != nil {
		l.end(err)
		l.has.Close()
		why := errNotOlder
		if ctx.Err() != nil { // nobody waits for it any more
			why = upstream.ErrNoStream
		}
		return nil, errors.Join(fmt.Errorf("%w: %w: %s does not say where to post: %w", upstream.ErrNeverSent, why, s.name, err), resp.Body.Close())
	}
	s.links.Go(func() {
		defer close(l.ended)
		defer l.has.Close()
		defer closer(resp.Body)()
		err := l.read(stream)
		l.end(err)
		l.fail(err)
	})
	return l, nil
}

// errNotOlder means that a server is none over HTTP+SSE, or none that can be used.
var errNotOlder = errors.New("the server has no stream of HTTP+SSE")

// serve has the gateway's own answers posted, once it is known in which revision.
func (l *link) serve(version string) {
	l.version.Store(&version)
	l.server.links.Go(l.answer)
}

// endpoint is the head of what is posted to the place that a server names, which lies where the
// configured address does: a server must not send our credentials elsewhere.
func (s *Transport) endpoint(place string) (*wire.Head, error) {
	at, err := s.url.Parse(place)
	if err != nil || len(place) > maxEndpoint || at.Scheme != s.url.Scheme || hostOf(at) != hostOf(s.url) || at.User != nil {
		return nil, errors.New("the place lies elsewhere than the configured address, or is none")
	}
	return head(http.MethodPost, &url.URL{Scheme: at.Scheme, Host: s.url.Host, Path: at.Path, RawPath: at.RawPath, RawQuery: at.RawQuery}, s.headers)
}

// hostOf is a host with its port, however that is written.
func hostOf(u *url.URL) string {
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return strings.ToLower(u.Hostname()) + ":" + port
}

// read takes what the server says until its stream ends, and says why it did.
func (l *link) read(stream *eventReader) error {
	begun, events := time.Now(), 0
	for {
		if now := time.Now(); now.Sub(begun) >= time.Minute {
			begun, events, stream.all = now, 0, 0
		}
		data, err := stream.next()
		if err != nil {
			return fmt.Errorf("the stream of %s has ended: %w", l.server.name, err)
		}
		if events++; events > upstream.MaxEvents {
			return fmt.Errorf("%s sent more than %d events in a minute", l.server.name, upstream.MaxEvents)
		}
		if len(data) == 0 {
			continue
		}
		stream.data.Settle()
		m, err := intake.Message(l.all, data, l.server.clean, l.has)
		switch {
		case l.all.Err() != nil:
			return fmt.Errorf("%s: %w", l.server.name, context.Cause(l.all))
		case err != nil:
			if l.dropped++; l.dropped == 1 {
				l.server.log.InfoContext(l.all, "message of a server dropped, for it can't be read; more are only counted", "server", l.server.name)
			}
		case m.Kind == gate.Response && l.settle(m): // which was asked for: it does not count
			events, stream.all = events-1, stream.all-stream.seen
		default:
			l.take(m)
		}
	}
}

// take brings what the server says to whom it is for.
func (l *link) take(m *gate.Answer) {
	switch {
	case m.Kind == gate.Response: // to nobody
	case m.Kind == gate.Request && m.Method == mcp.MethodPing:
		l.reply(upstream.Pong(m.ID.Of(m.Raw)))
	case m.Kind == gate.Request:
		if !l.deliver(m) {
			l.refuse(m)
		}
	default:
		if m.Method == mcp.MethodToolsChanged {
			l.server.Tell()
		}
		l.deliver(m)
	}
}

// settle hands an answer over to its request, with the room that it takes, and tells whether
// somebody waits for it.
func (l *link) settle(m *gate.Answer) bool {
	number, err := strconv.ParseInt(string(m.ID.Of(m.Raw)), 10, 64)
	if err != nil {
		return false
	}
	w := l.remove(func(w *waiting) bool { return w.number == number })
	switch {
	case w == nil:
		return false
	case upstream.Forged(m):
		w.answer <- answered{err: upstream.ErrForged}
	case !l.has.Give(w.room):
		w.answer <- answered{err: room.ErrFull}
	default:
		w.answer <- answered{message: m}
	}
	return true
}

// remove takes a request out that nobody is to find any more; nil where there is none.
func (l *link) remove(is func(*waiting) bool) *waiting {
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

// deliver queues a message for who takes it, and tells whether somebody does. Progress is for the
// request that asked for it. Of all else it is not said what it belongs to: where one request is
// in flight it is most likely about that, else it is for who listens, else for the first.
func (l *link) deliver(m *gate.Answer) bool {
	if m.Method == mcp.MethodProgress {
		return l.progressed(m)
	}
	message := bytes.Clone(m.Raw)
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.heard
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

// progressed queues progress for its request, under the client's own token.
func (l *link) progressed(m *gate.Answer) bool {
	number, err := strconv.ParseInt(string(m.ProgressToken.Of(m.Raw)), 10, 64)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		if w.number == number && w.events != nil && len(w.token) > 0 {
			message, err := gate.Splice(m.Raw, gate.Edit{Span: m.ProgressToken, With: w.token})
			return err == nil && w.events.put(message)
		}
	}
	return false
}

// refuse answers a request of the server's that no client takes.
func (l *link) refuse(m *gate.Answer) {
	l.reply(upstream.Refused(m.ID.Of(m.Raw), mcp.CodeMethodUnknown, upstream.NotCarried))
}

// close refuses what waits for who takes nothing any more. Nobody may queue anything more.
func (l *link) close(q *queue) {
	if q == nil {
		return
	}
	defer q.has.Close()
	for {
		select {
		case message := <-q.messages:
			if m, err := gate.ReadAnswer(message, gate.AnswerLimits()); err == nil && m.Kind == gate.Request {
				l.refuse(m)
			}
		default:
			return
		}
	}
}

// reply has an answer of the gateway's own posted. A server that asks faster than it takes the
// answers gets none.
func (l *link) reply(own upstream.Own) {
	select {
	case l.replies <- own.Request("", nil):
	default:
	}
}

// answer posts replies until the stream has ended.
func (l *link) answer() {
	for {
		select {
		case <-l.ended:
			return
		case reply := <-l.replies:
			ctx, cancel := context.WithTimeout(l.all, replyTimeout)
			if err := l.send(ctx, reply, reply.Body()); err != nil {
				l.server.log.DebugContext(ctx, "server's request not answered", "server", l.server.name, "error", err)
			}
			cancel()
		}
	}
}

// fail ends all that waits.
func (l *link) fail(err error) {
	for w := l.remove(anything); w != nil; w = l.remove(anything) {
		w.answer <- answered{err: err}
	}
}

func anything(*waiting) bool { return true }

// send posts one message. An error says whether any byte of it may have left.
func (l *link) send(ctx context.Context, req upstream.Request, body []byte) error {
	if req.Kind() == gate.Invalid {
		return fmt.Errorf("%w: %s: there is no message", upstream.ErrNeverSent, l.server.name)
	}
	var state agreed
	if version := l.version.Load(); version != nil {
		state.version = *version
	}
	resp, err := l.server.wire.Send(ctx, l.post, state.fields(upstream.Request{TraceParent: req.TraceParent}), body)
	switch {
	case err == nil:
	case errors.Is(err, wire.ErrNeverSent):
		return l.server.neverSent(err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s", upstream.ErrTimeout, l.server.name)
	default:
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, err)
	}
	defer closeBody(resp)
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone {
		l.end(errLost) // the server knows the session no longer, whatever its stream does
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%w: %s answered %d", upstream.ErrNoAnswer, l.server.name, resp.StatusCode)
	}
	return nil
}

// request posts a request, and waits for the answer on the stream, which may come before the post
// has ended.
func (l *link) request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	w := &waiting{client: bytes.Clone(req.ID()), token: bytes.Clone(req.ProgressToken()), room: req.Room, answer: make(chan answered, 1)}
	if events != nil {
		w.events = newQueue(req.Room)
	}
	if err := l.wait(w); err != nil {
		return upstream.Answer{}, err
	}
	defer func() {
		l.remove(func(other *waiting) bool { return other == w })
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
		w.events.took(message)
		events(message)
	}
	for {
		select {
		case message := <-messages:
			take(message)
		case a := <-w.answer:
			for len(messages) > 0 { // which came before
				take(<-messages)
			}
			return l.answered(w, a)
		case err := <-sent:
			if sent = nil; err == nil {
				continue
			}
			if w := l.remove(func(other *waiting) bool { return other == w }); w == nil { // the answer is there
				continue
			}
			return upstream.Answer{Status: 0}, err
		case <-ctx.Done():
			if l.remove(func(other *waiting) bool { return other == w }) == nil { // likewise
				return l.answered(w, <-w.answer)
			}
			class := upstream.ErrNoAnswer
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				class = upstream.ErrTimeout
			}
			return upstream.Answer{}, fmt.Errorf("%w: %s: %w", class, l.server.name, context.Cause(ctx))
		}
	}
}

// answered is what a request's answer is for who asked.
func (l *link) answered(w *waiting, a answered) (upstream.Answer, error) {
	if a.err == nil {
		a.message, a.err = a.message.Addressed(w.client)
	}
	if a.err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, a.err)
	}
	w.room.Keep(cap(a.message.Raw))
	return upstream.Answer{Message: a.message, Status: http.StatusOK}, nil
}

// body is a request as it is posted.
func (w *waiting) body(req upstream.Request) ([]byte, error) {
	edits := []gate.Edit{{Span: req.Message.ID, With: w.id()}}
	if len(w.token) > 0 {
		edits = append(edits, gate.Edit{Span: req.Message.Meta.ProgressToken, With: w.id()})
	}
	body, err := gate.Splice(req.Body(), edits...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	return body, nil
}

// notify posts a notification, or the answer to a request of the server's. What gives a request up
// names it by its number; where that has ended there is nothing to give up.
func (l *link) notify(ctx context.Context, req upstream.Request) error {
	body := req.Body()
	if req.Method() == mcp.MethodCancelled {
		id := req.Message.RequestID
		l.mu.Lock()
		i := slices.IndexFunc(l.waiting, func(w *waiting) bool { return gate.SameID(w.client, id.Of(req.Body())) })
		var number []byte
		if i >= 0 {
			number = l.waiting[i].id()
		}
		l.mu.Unlock()
		if number == nil {
			return nil
		}
		var err error
		if body, err = gate.Splice(body, gate.Edit{Span: id, With: number}); err != nil {
			return fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
		}
	}
	return l.send(ctx, req, body)
}

// wait notes a request that is about to be sent.
func (l *link) wait(w *waiting) error {
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

// errLost means that a stream has ended.
var errLost = errors.New("the stream has ended")

// named reads events until one has data, which has to be of this type, and returns it.
func (e *eventReader) named(kind string) (string, error) {
	e.wanted = kind
	defer func() { e.wanted = "" }()
	for {
		data, err := e.next()
		switch {
		case err != nil:
			return "", err
		case e.kind == kind:
			return strings.TrimSpace(string(data)), nil
		case len(data) > 0:
			return "", fmt.Errorf("the first event is none of type %q", kind)
		}
	}
}
