package streamable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// These are the content types of responses.
const (
	typeJSON   = "application/json"
	typeEvents = "text/event-stream"
)

const (
	// drainTimeout limits how long a server may take to end a response after the gateway has read the answer.
	drainTimeout = 50 * time.Millisecond
	// maxDrain is the maximum number of bytes that are read from a response after the answer.
	maxDrain = 4 << 10
)

// Request implements upstream.Conn. If the server has lost the session, Request opens a new session and sends the
// request once more. This also applies to tools/call, because a server that restarts loses all sessions. Without the
// second attempt, the first call in each session would have an unknown outcome and could not be repeated.
//
// In MCP, status 404 means that the session had ended before the request arrived. A server gains nothing if it executes
// a call and then responds with 404, because it can repeat the call with the same arguments itself. The first attempt
// counts as sent, regardless of the second attempt's result. A request with [upstream.Request.Once] is not sent again.
func (c *conn) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	state := c.state.Load()
	answer, err := c.exchange(ctx, req, state, events)
	if errors.Is(err, errDoubtful) {
		return answer, c.probe(ctx, state, req.Room, err)
	}
	if !errors.Is(err, errForgotten) {
		return answer, err
	}
	if req.Once {
		_, _ = c.reopen(ctx, state, req.Room) // opens a session for the next request; the result does not affect this request
		req.Room.Settle(0)
		return answer, fmt.Errorf("%w: %s forgot the session", upstream.ErrNoAnswer, c.server.name)
	}
	state, err = c.reopen(ctx, state, req.Room)
	if err != nil { // err describes another message, but bytes of this request were sent
		return answer, upstream.WithClass(upstream.ErrNoAnswer, c.server.name+" forgot the session, and there is no new one", err)
	}
	answer, err = c.exchange(ctx, req, state, events)
	if errors.Is(err, upstream.ErrNeverSent) { // bytes of the first attempt were sent
		err = upstream.WithClass(upstream.ErrNoAnswer, c.server.name+" forgot the session", err)
	}
	return answer, err
}

func (c *conn) exchange(ctx context.Context, req upstream.Request, state *negotiated, events func([]byte)) (upstream.Answer, error) {
	if req.Method() == mcp.MethodListen && c.server.tokens != nil {
		return c.subscribe(ctx, req, state, events)
	}
	return c.exchangeOnce(ctx, req, state, events)
}

// exchangeOnce sends a request and reads the answer.
func (c *conn) exchangeOnce(ctx context.Context, req upstream.Request, state *negotiated, events func([]byte)) (upstream.Answer, error) {
	resp, err := c.post(ctx, req, state)
	if err != nil {
		return upstream.Answer{}, err
	}
	defer closeBody(resp)
	message, err := c.answer(ctx, resp, req, state, events)
	if err != nil && resp.StatusCode == http.StatusNotFound && state.session != "" && contentType(resp) != typeEvents {
		err = fmt.Errorf("%w: %w", errForgotten, err)
	}
	// A refused access token, or a missing scope, does not mean that the session is lost.
	isRefused := c.server.tokens != nil && hasChallenge(resp, "", "invalid_token", "insufficient_scope")
	if err != nil && !isRefused && mayMeanLost(resp.StatusCode) && state.session != "" && contentType(resp) != typeEvents {
		err = fmt.Errorf("%w: %w", errDoubtful, err)
	}
	return upstream.Answer{Message: message, Status: resp.StatusCode}, err
}

// appendFields appends the headers of requests in a session. It does not copy headers from a client's request.
func (state *negotiated) appendFields(fields []httpclient.Field, req upstream.Request) []httpclient.Field {
	fields = append(fields, httpclient.Field{Name: headerSession, Value: state.session}, httpclient.Field{Name: headerVersion, Value: state.version}, httpclient.Field{Name: headerTrace, Value: req.TraceParent})
	switch {
	case state.modern():
		fields = append(fields, bodyHeaders(req)...)
	// A server that also supports revision 2026-07-28 may read this header.
	case req.Message != nil && (req.Method() == mcp.MethodInitialize || req.Method() == mcp.MethodInitialized):
		fields = append(fields, httpclient.Field{Name: headerMethod, Value: req.Method()})
	}
	return fields
}

func (c *conn) fields(fields []httpclient.Field, state *negotiated, req upstream.Request) []httpclient.Field {
	return append(state.appendFields(fields, req), state.cookies.field(c.server.cookie))
}

func (c *conn) scrubberFor(state *negotiated) *redact.Redactor {
	if state.cookies == nil {
		return c.server.secrets.Load().clean
	}
	return state.cookies.scrubber()
}

// post sends one message. The error wraps [upstream.ErrNeverSent] if certainly no byte of the message was sent.
func (c *conn) post(ctx context.Context, req upstream.Request, state *negotiated) (*http.Response, error) {
	if state.lost {
		return nil, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, state.lossError())
	}
	if state.closed {
		return nil, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.server.name, upstream.ErrClosed)
	}
	if req.Kind() == jsonrpc.Invalid {
		return nil, fmt.Errorf("%w: %s: there is no message", upstream.ErrNeverSent, c.server.name)
	}
	var space [5]httpclient.Field
	permit := req.Permit // a copy, so that the closure does not capture the whole request
	begin := func() error { return upstream.Renew(permit) }
	resp, err := c.server.send(ctx, state.signedIn, req.Once, begin, c.server.post, c.fields(space[:0], state, req), req.Body())
	switch {
	case err == nil:
		state.cookies.store(resp.Header)
		return resp, nil
	case errors.Is(err, httpclient.ErrNeverSent):
		return nil, c.server.neverSent(err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: %s", upstream.ErrTimeout, c.server.name)
	default:
		return nil, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, err)
	}
}

func (s *Transport) neverSent(err error) error {
	err = s.connectError(err)
	if errors.Is(err, httpclient.ErrUnreached) {
		return fmt.Errorf("%w: %w: %s: %w", upstream.ErrNeverSent, upstream.ErrUnreached, s.name, err)
	}
	return fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, s.name, err)
}

// answer reads the answer to req from a response. The response is either one JSON message or an event stream. In an
// event stream, answer reads the messages up to the answer.
func (c *conn) answer(ctx context.Context, resp *http.Response, req upstream.Request, state *negotiated, events func([]byte)) (message *jsonrpc.Answer, err error) {
	defer func() {
		if err != nil {
			req.Room.Settle(0) // releases the memory for the data that was read
			message, err = nil, c.answerError(resp, err)
		}
	}()
	switch kind := contentType(resp); kind {
	case typeEvents:
		to := receivers{events: events, reply: func(m *jsonrpc.Answer) { c.reply(ctx, m, state) }, changed: c.server.Notify}
		if !state.opening && !state.modern() {
			to.resume = func(last string, wait time.Duration) (io.ReadCloser, error) { return c.resume(ctx, state, last, wait) }
		}
		return readEvents(ctx, resp.Body, func() *redact.Redactor { return c.scrubberFor(state) }, req, to)
	case typeJSON:
	default:
		return nil, fmt.Errorf("the content type is %q", kind)
	}
	body, err := bodyreader.Body(ctx, resp.Body, resp.ContentLength, upstream.MaxMessage, req.Room)
	if err != nil {
		return nil, err
	}
	body = bytes.TrimPrefix(body, []byte(jsonrpc.ByteOrderMark))
	message, err = bodyreader.ReadRepaired(ctx, body, c.scrubberFor(state), req.Room, methodOf(req))
	switch {
	case err != nil:
		return nil, upstream.AsAnswerError(err)
	case message.Kind != jsonrpc.Response:
		return nil, upstream.ErrNoResponse
	case state.opening && c.server.hasOneSession(resp.StatusCode, message):
		return nil, upstream.ErrOneSession
	case message.Error.Present() && string(message.ID.Of(message.Raw)) == "null":
		return nil, upstream.ErrNoID
	case !message.UnquoteID(req.ID()):
		return nil, upstream.ErrOtherID
	case upstream.IsForged(message):
		return nil, upstream.ErrForged
	default:
		return message, nil
	}
}

func methodOf(req upstream.Request) func(id []byte) string {
	return func(id []byte) string {
		if jsonrpc.SameID(id, req.ID()) || jsonrpc.SameID(jsonrpc.NumberIn(id), req.ID()) {
			return req.Method()
		}
		return ""
	}
}

func contentType(resp *http.Response) string {
	value := resp.Header.Get("Content-Type")
	if value == typeJSON {
		return typeJSON
	}
	kind, _, _ := mime.ParseMediaType(value)
	return kind
}

// answerError classifies the error of a request whose answer can't be used. A status does not prove that the server has
// not read the request. For example, a tool may forward the status 429 of another service.
func (c *conn) answerError(resp *http.Response, err error) error {
	what := upstream.ErrNoAnswer
	if errors.Is(err, context.DeadlineExceeded) {
		what = upstream.ErrTimeout
	}
	return c.server.withCause(resp, what, fmt.Errorf("%s answered %d: %w", c.server.name, resp.StatusCode, err))
}

// closer returns a function that closes a body. This also ends a read that is in progress.
func closer(body io.Closer) func() { return func() { _ = body.Close() } }

// closeBody closes a response. If the rest of the body is small, closeBody reads it first, so that the connection can
// be reused. If the response does not end within drainTimeout, the connection is closed.
func closeBody(resp *http.Response) {
	if body, ok := resp.Body.(interface{ Ended() bool }); ok && body.Ended() || resp.Body == http.NoBody {
		return
	}
	timer := time.AfterFunc(drainTimeout, closer(resp.Body))
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	_ = resp.Body.Close()
}
