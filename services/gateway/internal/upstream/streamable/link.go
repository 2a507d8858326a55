package streamable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wire"
)

const (
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
	// version is the revision that was agreed on; set before the link is used.
	version string
	// replies are the gateway's own answers to what the server asks, until they are posted.
	replies chan upstream.Request

	mu      sync.Mutex
	waiting []*waiting // in the order in which they were sent
	heard   chan []byte
}

// waiting is a request without an answer.
type waiting struct {
	key    string
	token  []byte
	room   *room.Holding
	events chan []byte // nil where nobody takes any
	answer chan answered
}

// answered is what came of it.
type answered struct {
	message *gate.Answer
	err     error
}

// dial opens a stream, and waits for the place to which messages are to be posted.
func (s *Transport) dial(ctx context.Context, has *room.Holding) (*link, error) {
	l := &link{server: s, has: has.Beside(), ended: make(chan struct{}), replies: make(chan upstream.Request, queued)}
	l.all, l.end = context.WithCancelCause(s.all)
	late := time.AfterFunc(openTimeout, func() { l.end(context.DeadlineExceeded) })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })()
	resp, err := s.wire.Send(l.all, s.get, nil, nil)
	if err != nil {
		l.end(err)
		return nil, fmt.Errorf("%w: open the stream of %s: %w", upstream.ErrNeverSent, s.name, err)
	}
	if resp.StatusCode != http.StatusOK || contentType(resp) != typeEvents {
		l.end(upstream.ErrClosed)
		return nil, errors.Join(fmt.Errorf("%w: %s answered %d to who wants a stream", upstream.ErrNeverSent, s.name, resp.StatusCode), resp.Body.Close())
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
		return nil, errors.Join(fmt.Errorf("%w: %s does not say where to post: %w", upstream.ErrNeverSent, s.name, err), resp.Body.Close())
	}
	s.links.Go(func() {
		defer close(l.ended)
		defer l.has.Close()
		defer closer(resp.Body)()
		err := l.read(stream)
		l.end(err)
		l.fail(err)
	})
	s.links.Go(l.answer)
	return l, nil
}

// endpoint is the head of what is posted to the place that a server names, which lies where the
// configured address does: a server must not send our credentials elsewhere.
func (s *Transport) endpoint(place string) (*wire.Head, error) {
	at, err := s.url.Parse(place)
	if err != nil || len(place) > maxEndpoint || at.Scheme != s.url.Scheme || at.Host != s.url.Host || at.User != nil {
		return nil, errors.New("the place lies elsewhere than the configured address, or is none")
	}
	return head(http.MethodPost, &url.URL{Scheme: at.Scheme, Host: at.Host, Path: at.Path, RawPath: at.RawPath, RawQuery: at.RawQuery}, s.headers)
}

// read takes what the server says until its stream ends, and says why it did.
func (l *link) read(stream *eventReader) error {
	begun, events := time.Now(), 0
	for {
		data, err := stream.next()
		if err != nil {
			return fmt.Errorf("the stream of %s has ended: %w", l.server.name, err)
		}
		if now := time.Now(); now.Sub(begun) >= time.Minute {
			begun, events, stream.all = now, 0, stream.seen
		}
		if events++; events > upstream.MaxEvents {
			return fmt.Errorf("%s sent more than %d events in a minute", l.server.name, upstream.MaxEvents)
		}
		if len(data) == 0 {
			continue
		}
		stream.data.Settle()
		m, err := intake.Message(l.all, data, l.server.clean, l.has)
		if err != nil {
			return fmt.Errorf("read what %s says: %w", l.server.name, err)
		}
		l.take(m)
	}
}

// take brings what the server says to whom it is for.
func (l *link) take(m *gate.Answer) {
	switch {
	case m.Kind == gate.Response:
		l.settle(m)
	case m.Kind == gate.Request && m.Method == mcp.MethodPing:
		l.reply(upstream.Pong(m.ID.Of(m.Raw)))
	case m.Kind == gate.Request:
		if !l.deliver(m) {
			l.reply(upstream.Refused(m.ID.Of(m.Raw), mcp.CodeMethodUnknown, upstream.NotCarried))
		}
	default:
		if m.Method == mcp.MethodToolsChanged {
			l.server.Tell()
		}
		l.deliver(m)
	}
}

// settle hands an answer over to its request, with the room that it takes. One that nobody waits
// for is dropped.
func (l *link) settle(m *gate.Answer) {
	w := l.remove(func(w *waiting) bool { return w.key == gate.IDKey(m.ID.Of(m.Raw)) })
	switch {
	case w == nil:
	case upstream.Forged(m):
		w.answer <- answered{err: upstream.ErrForged}
	case !l.has.Give(w.room):
		w.answer <- answered{err: room.ErrFull}
	default:
		w.answer <- answered{message: m}
	}
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
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []chan []byte
	for _, w := range l.waiting {
		if w.events != nil && (m.Method != mcp.MethodProgress || upstream.Belongs(m, w.token)) {
			all = append(all, w.events)
		}
	}
	to := l.heard
	if m.Method == mcp.MethodProgress || len(all) == 1 || to == nil {
		to = nil
		if len(all) > 0 {
			to = all[0]
		}
	}
	if to == nil || len(m.Raw) > maxQueued {
		return false
	}
	select {
	case to <- bytes.Clone(m.Raw):
		return true
	default:
		return false
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
			if err := l.send(ctx, reply); err != nil {
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
func (l *link) send(ctx context.Context, req upstream.Request) error {
	if req.Kind() == gate.Invalid {
		return fmt.Errorf("%w: %s: there is no message", upstream.ErrNeverSent, l.server.name)
	}
	state := agreed{version: l.version}
	resp, err := l.server.wire.Send(ctx, l.post, state.fields(upstream.Request{TraceParent: req.TraceParent}), req.Body())
	switch {
	case err == nil:
	case errors.Is(err, wire.ErrNeverSent):
		return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, l.server.name, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s", upstream.ErrTimeout, l.server.name)
	default:
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, err)
	}
	defer closeBody(resp)
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%w: %s answered %d", upstream.ErrNoAnswer, l.server.name, resp.StatusCode)
	}
	return nil
}

// request posts a request, and waits for the answer on the stream.
func (l *link) request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	w := &waiting{key: gate.IDKey(req.ID()), token: bytes.Clone(req.ProgressToken()), room: req.Room, answer: make(chan answered, 1)}
	if events != nil {
		w.events = make(chan []byte, queued)
	}
	if err := l.wait(w); err != nil {
		return upstream.Answer{}, err
	}
	defer l.remove(func(other *waiting) bool { return other == w })
	if err := l.send(ctx, req); err != nil {
		return upstream.Answer{}, err
	}
	for {
		select {
		case event := <-w.events:
			events(event)
		case a := <-w.answer:
			for len(w.events) > 0 { // which came before
				events(<-w.events)
			}
			if a.err != nil {
				return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, a.err)
			}
			return upstream.Answer{Message: a.message, Status: http.StatusOK}, nil
		case <-ctx.Done():
			class := upstream.ErrNoAnswer
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				class = upstream.ErrTimeout
			}
			return upstream.Answer{}, fmt.Errorf("%w: %s: %w", class, l.server.name, context.Cause(ctx))
		}
	}
}

// wait notes a request that is about to be sent.
func (l *link) wait(w *waiting) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all.Err() != nil {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, l.server.name, errLost)
	}
	for _, other := range l.waiting {
		if other.key == w.key { // of two answers nobody could tell which is whose
			return fmt.Errorf("%w: %s: a request with this id waits", upstream.ErrNeverSent, l.server.name)
		}
	}
	l.waiting = append(l.waiting, w)
	return nil
}

// errLost means that a stream has ended.
var errLost = errors.New("the stream has ended")

// named reads the next event, which has to be of this type, and returns its data.
func (e *eventReader) named(kind string) (string, error) {
	e.wanted = kind
	defer func() { e.wanted = "" }()
	data, err := e.next()
	if err == nil && e.kind != kind {
		err = fmt.Errorf("the first event is none of type %q", kind)
	}
	return strings.TrimSpace(string(data)), err
}
