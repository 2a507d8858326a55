package streamable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
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
	// cookies are those of the session.
	cookies *cookies
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

// dial opens a stream, and waits for the place to which messages are to be posted.
func (s *Transport) dial(ctx context.Context, has *room.Holding) (*link, error) {
	l := &link{server: s, has: has.Beside(), ended: make(chan struct{}), replies: make(chan upstream.Request, queued), cookies: s.newCookies()}
	l.all, l.end = context.WithCancelCause(s.all)
	late := time.AfterFunc(endpointTimeout, func() { l.end(context.DeadlineExceeded) })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })()
	resp, err := s.wire.Send(l.all, s.get, []wire.Field{l.cookies.field(s.cookie)}, nil)
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
		err := fmt.Errorf("%w: %w: %s answered %d to who wants a stream", upstream.ErrNeverSent, why, s.name, resp.StatusCode)
		return nil, errors.Join(s.caused(resp, err), resp.Body.Close())
	}
	l.cookies.take(resp.Header)
	stream := &eventReader{data: intake.New(l.all, l.has, upstream.MaxMessage), begun: time.Now()}
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
	for {
		data, err := stream.next()
		if err != nil {
			return fmt.Errorf("the stream of %s has ended: %w", l.server.name, err)
		}
		if len(data) == 0 {
			continue
		}
		stream.data.Settle()
		m, err := intake.Mended(l.all, data, l.cookies.scrubber(), l.has, l.methodOf)
		switch {
		case l.all.Err() != nil:
			return fmt.Errorf("%s: %w", l.server.name, context.Cause(l.all))
		case err != nil && l.fails(data, err):
		case err != nil:
			if l.dropped++; l.dropped == 1 {
				l.server.log.InfoContext(l.all, "message of a server dropped, for it can't be read; more are only counted", "server", l.server.name)
			}
		case m.Kind == gate.Response && l.settle(m): // which was asked for: it does not count
			stream.events, stream.all = stream.events-1, stream.all-stream.seen
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

// refuse answers a request of the server's that no client takes.
func (l *link) refuse(m *gate.Answer) {
	l.reply(upstream.Refused(m.ID.Of(m.Raw), mcp.CodeMethodUnknown, upstream.NotCarried))
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
				l.server.log.DebugContext(ctx, "server's request not answered", "server", l.server.name, "error", upstream.ForLog(err))
			}
			cancel()
		}
	}
}

// send posts one message. An error says whether any byte of it may have left.
func (l *link) send(ctx context.Context, req upstream.Request, body []byte) error {
	if req.Kind() == gate.Invalid {
		return fmt.Errorf("%w: %s: there is no message", upstream.ErrNeverSent, l.server.name)
	}
	var state agreed
	if version := l.version.Load(); version != nil {
		state.version = *version
	}
	resp, err := l.server.wire.Send(ctx, l.post, append(state.appendFields(nil, upstream.Request{TraceParent: req.TraceParent}), l.cookies.field(l.server.cookie)), body)
	switch {
	case err == nil:
		l.cookies.take(resp.Header)
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
		return l.server.caused(resp, fmt.Errorf("%w: %s answered %d", upstream.ErrNoAnswer, l.server.name, resp.StatusCode))
	}
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
