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

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	// endpointTimeout limits how long a server may take to send its first event. This event must contain the endpoint for
	// messages.
	endpointTimeout = 5 * time.Second
	// maxEndpoint is the maximum length of an endpoint, in bytes.
	maxEndpoint = 4 << 10
	// queued is the maximum number of messages that wait for one receiver. maxQueued is the maximum size, in bytes, of
	// each of these messages. Messages beyond these limits are dropped, because a slow client must not delay answers.
	queued    = 64
	maxQueued = 256 << 10
)

// A link is one HTTP+SSE stream of a server, together with the requests whose answers arrive on this stream. The server
// sends all its messages on the stream, and the gateway posts all its messages (MCP 2024-11-05, Transports, HTTP with
// SSE). A link is safe for concurrent use.
type link struct {
	server *Transport
	// all is the context of the stream. end cancels it, which ends the stream. ended is closed when the stream is no
	// longer read.
	all   context.Context //nolint:containedctx // the context of the stream, which outlives requests
	end   context.CancelCauseFunc
	ended chan struct{}
	// post contains the request line and the headers for posting messages.
	post    *httpclient.Head
	cookies *cookies
	// signedIn is the sign-in whose access tokens are used. It is nil if the server does not require OAuth.
	signedIn *accesstoken.Connection
	// has is the memory budget for the message that is being read from the stream.
	has *limits.Memory
	// version is the negotiated revision, or nil before a revision is negotiated.
	version atomic.Pointer[string]
	// replies contains responses from the gateway that are not posted yet.
	replies chan upstream.Request

	mu            sync.Mutex
	last          int64             // the number of the last request
	waiting       []*pendingRequest // in the order in which they were sent
	listenerQueue *queue            // the listener's queue, or nil if there is no listener
	dropped       int               // the number of messages that could not be read
}

// dial opens a stream and waits for the endpoint that messages are posted to.
func (s *Transport) dial(ctx context.Context, signedIn *accesstoken.Connection, memory *limits.Memory) (*link, error) {
	l := &link{server: s, signedIn: signedIn, has: memory.Sibling(), ended: make(chan struct{}), replies: make(chan upstream.Request, queued), cookies: s.newCookies()}
	l.all, l.end = context.WithCancelCause(s.all)
	late := time.AfterFunc(endpointTimeout, func() { l.end(context.DeadlineExceeded) })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })()
	resp, err := s.send(l.all, signedIn, false, nil, s.get, []httpclient.Field{l.cookies.field(s.cookie)}, nil)
	if err != nil {
		l.end(err)
		return nil, s.neverSent(err)
	}
	if resp.StatusCode != http.StatusOK || contentType(resp) != typeEvents {
		l.end(upstream.ErrClosed)
		why := upstream.ErrNoStream // the server might have a stream later
		if resp.StatusCode == http.StatusOK || (upstream.Answer{Status: resp.StatusCode}).IsUnknownRequest() {
			why = errNoSSE
		}
		err := fmt.Errorf("%w: %s answered %d to the request for a stream", why, s.name, resp.StatusCode)
		return nil, errors.Join(s.withCause(resp, upstream.ErrNeverSent, err), resp.Body.Close())
	}
	l.cookies.store(resp.Header)
	stream := &eventReader{data: bodyreader.New(l.all, l.has, upstream.MaxMessage), begun: time.Now()}
	stream.continueWith(resp.Body)
	endpoint, err := stream.firstEvent("endpoint")
	if err == nil {
		l.post, err = s.endpoint(endpoint)
	}
	if err != nil {
		l.end(err)
		l.has.Close()
		why := errNoSSE
		if ctx.Err() != nil { // the caller has stopped waiting, so it is unknown whether the server supports HTTP+SSE
			why = upstream.ErrNoStream
		}
		return nil, errors.Join(fmt.Errorf("%w: %w: %s names no endpoint for messages: %w", upstream.ErrNeverSent, why, s.name, err), resp.Body.Close())
	}
	s.links.Go(func() {
		defer close(l.ended)
		defer l.has.Close()
		defer closer(resp.Body)()
		defer l.hold()()
		err := l.read(stream)
		if ended := signedIn.Err(); ended != nil {
			err = fmt.Errorf("%s: %w", s.name, ended)
		}
		l.end(err)
		l.fail(err)
	})
	return l, nil
}

// hold ends the stream when the stream's sign-in ends, unless the returned function has been called.
func (l *link) hold() func() {
	held, release := l.signedIn.Hold(l.all)
	stop := context.AfterFunc(held, func() { l.end(context.Cause(held)) })
	return func() {
		stop()
		release()
	}
}

// errNoSSE means that a server does not support HTTP+SSE, or does not support it in a usable form.
var errNoSSE = errors.New("the server has no HTTP+SSE stream")

// serve sets the negotiated revision and starts the goroutine that posts the gateway's responses.
func (l *link) serve(version string) {
	l.version.Store(&version)
	l.server.links.Go(l.answer)
}

// endpoint returns the request head for posting messages to an endpoint. place is the endpoint that the server has
// sent. It must have the scheme, the host and the port of the configured address, because the gateway's credentials
// must not be sent to another address.
func (s *Transport) endpoint(place string) (*httpclient.Head, error) {
	at, err := s.url.Parse(place)
	if err != nil || len(place) > maxEndpoint || at.Scheme != s.url.Scheme || hostOf(at) != hostOf(s.url) || at.User != nil {
		return nil, errors.New("the endpoint is invalid, or its host differs from that of the configured address")
	}
	return head(http.MethodPost, &url.URL{Scheme: at.Scheme, Host: s.url.Host, Path: at.Path, RawPath: at.RawPath, RawQuery: at.RawQuery}, s.headers)
}

// hostOf returns the host of a URL in lower case, always with a port.
func hostOf(u *url.URL) string {
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return strings.ToLower(u.Hostname()) + ":" + port
}

// read handles the server's messages until the stream ends. It returns the reason why the stream ended.
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
		m, err := bodyreader.ReadRepaired(l.all, data, l.cookies.scrubber(), l.has, l.methodOf)
		switch {
		case l.all.Err() != nil:
			return fmt.Errorf("%s: %w", l.server.name, context.Cause(l.all))
		case err != nil && l.failUnreadable(data, err):
		case err != nil:
			if l.dropped++; l.dropped == 1 {
				l.server.log.InfoContext(l.all, "server message dropped because it can't be read; later ones are only counted", "server", l.server.name)
			}
		case m.Kind == jsonrpc.Response && l.deliverAnswer(m): // answers to requests do not count toward the limits
			stream.events, stream.all = stream.events-1, stream.all-stream.seen
		default:
			l.take(m)
		}
	}
}

// take passes a message from the server to its receiver. The message is not an answer to a request.
func (l *link) take(m *jsonrpc.Answer) {
	switch {
	case m.Kind == jsonrpc.Response: // no request is waiting for the response
	case m.Kind == jsonrpc.Request && m.Method == mcp.MethodPing:
		l.reply(upstream.Pong(m.ID.Of(m.Raw)))
	case m.Kind == jsonrpc.Request:
		if !l.deliver(m) {
			l.refuse(m)
		}
	default:
		if m.Method == mcp.MethodToolsChanged {
			l.server.Notify()
		}
		l.deliver(m)
	}
}

// refuse responds to a request from the server that no client accepts.
func (l *link) refuse(m *jsonrpc.Answer) {
	l.reply(upstream.Refused(m.ID.Of(m.Raw), mcp.CodeMethodUnknown, upstream.NoClientForRequest))
}

// reply queues a response from the gateway. If the queue is full, because the server sends requests faster than it
// accepts responses, the response is dropped.
func (l *link) reply(own upstream.GatewayMessage) {
	select {
	case l.replies <- own.Request("", nil):
	default:
	}
}

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

// send posts one message. The error wraps [upstream.ErrNeverSent] if certainly no byte of the message was sent.
func (l *link) send(ctx context.Context, req upstream.Request, body []byte) error {
	if req.Kind() == jsonrpc.Invalid {
		return fmt.Errorf("%w: %s: there is no message", upstream.ErrNeverSent, l.server.name)
	}
	var state negotiated
	if version := l.version.Load(); version != nil {
		state.version = *version
	}
	resp, err := l.server.send(ctx, l.signedIn, req.Once, req.MayBegin, l.post, append(state.appendFields(nil, upstream.Request{TraceParent: req.TraceParent}), l.cookies.field(l.server.cookie)), body)
	switch {
	case err == nil:
		l.cookies.store(resp.Header)
	case errors.Is(err, httpclient.ErrNeverSent):
		return l.server.neverSent(err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s", upstream.ErrTimeout, l.server.name)
	default:
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, l.server.name, err)
	}
	defer closeBody(resp)
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone {
		l.end(errLost) // the server has lost the session, even if its stream is open
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return l.server.withCause(resp, upstream.ErrNoAnswer, fmt.Errorf("%s answered %d", l.server.name, resp.StatusCode))
	}
	return nil
}

var errLost = errors.New("the stream has ended")

// firstEvent reads up to the first event with data, and returns this data. It returns an error if the event does not
// have the given type.
func (e *eventReader) firstEvent(kind string) (string, error) {
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
			return "", fmt.Errorf("the type of the first event is not %q", kind)
		}
	}
}
