package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// HTTPConfig says how to reach a server over Streamable HTTP.
type HTTPConfig struct {
	// Name is the server's configured name.
	Name string
	// URL is its MCP endpoint.
	URL string
	// Headers are sent with every request, references resolved.
	Headers map[string]string
}

// HTTP is a server that is reached over Streamable HTTP, MCP 2025-11-25,
// "Transports". Nothing that a client sent goes into its headers.
type HTTP struct {
	name    string
	url     string
	headers http.Header
	client  *http.Client
	log     *slog.Logger
}

// NewHTTP returns a server that is reached over Streamable HTTP. It connects
// when a session is opened.
func NewHTTP(cfg HTTPConfig, log *slog.Logger) (*HTTP, error) {
	if log == nil {
		return nil, errors.New("upstream: a log is required")
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("server %s: %q is not the URL of an MCP endpoint", cfg.Name, cfg.URL)
	}
	headers := make(http.Header, len(cfg.Headers))
	for key, value := range cfg.Headers {
		headers.Set(key, value)
	}
	return &HTTP{
		name:    cfg.Name,
		url:     cfg.URL,
		headers: headers,
		log:     log,
		client: &http.Client{
			Transport: newTransport(u.Hostname()),
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // an address comes from the configuration alone
			},
		},
	}, nil
}

// Transport implements Server.
func (*HTTP) Transport() string { return "http" }

// Close implements Server.
func (s *HTTP) Close() error {
	s.client.CloseIdleConnections()
	return nil
}

// Open implements Server. Each session of a client is a session of its own with
// the server.
func (s *HTTP) Open(ctx context.Context, _ Principal, initialize Request) (Conn, Answer, error) {
	c := &httpConn{server: s, initialize: initialize}
	answer, err := c.handshake(ctx)
	if err != nil {
		return nil, Answer{}, err
	}
	return c, answer, nil
}

// httpConn is a session with a server.
type httpConn struct {
	server     *HTTP
	initialize Request
	// state is what the last handshake gave.
	state atomic.Pointer[httpState]
	// mu serializes handshakes, so that requests that find the session gone open
	// one new session together.
	mu sync.Mutex
}

// httpState is what a handshake gave.
type httpState struct {
	// session is the server's Mcp-Session-Id; empty where it has no sessions.
	session string
	// version is the protocol revision that was negotiated.
	version string
}

// handshake sends initialize and keeps what it gave.
func (c *httpConn) handshake(ctx context.Context) (Answer, error) {
	resp, err := c.post(ctx, c.initialize, httpState{}) //nolint:bodyclose // closeBody does
	if err != nil {
		return Answer{}, err
	}
	defer closeBody(resp)
	message, err := c.answer(resp, c.initialize, nil)
	if err != nil {
		return Answer{}, err
	}
	state := &httpState{session: resp.Header.Get("Mcp-Session-Id")}
	state.version = versionOf(message)
	c.state.Store(state)
	return Answer{Message: message, Status: resp.StatusCode}, nil
}

// Request implements Conn. A session that the server has forgotten is opened
// again, once: a server that answers 404 to a session did not read the request.
func (c *httpConn) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	state := c.state.Load()
	answer, err := c.exchange(ctx, req, *state, events)
	if answer.Status != http.StatusNotFound || state.session == "" {
		return answer, err
	}
	if state, err = c.reopen(ctx, state); err != nil {
		return Answer{}, fmt.Errorf("%w: open a new session: %w", ErrNeverSent, err)
	}
	return c.exchange(ctx, req, *state, events)
}

// exchange sends a request in a session and reads the answer.
func (c *httpConn) exchange(ctx context.Context, req Request, state httpState, events func([]byte)) (Answer, error) {
	resp, err := c.post(ctx, req, state)
	if err != nil {
		return Answer{}, err
	}
	defer closeBody(resp)
	message, err := c.answer(resp, req, events)
	return Answer{Message: message, Status: resp.StatusCode}, err
}

// reopen opens a new session in place of old, unless another request has.
func (c *httpConn) reopen(ctx context.Context, old *httpState) (*httpState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.state.Load(); now != old {
		return now, nil
	}
	if _, err := c.handshake(ctx); err != nil {
		return nil, err
	}
	c.server.log.InfoContext(ctx, "server forgot its session; opened a new one", "server", c.server.name)
	ready := Request{Body: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), Method: "notifications/initialized"}
	return c.state.Load(), c.Notify(ctx, ready)
}

// Notify implements Conn.
func (c *httpConn) Notify(ctx context.Context, req Request) error {
	resp, err := c.post(ctx, req, *c.state.Load())
	if err != nil {
		return err
	}
	closeBody(resp)
	return nil
}

// Close implements Conn.
func (c *httpConn) Close(ctx context.Context) error {
	state := c.state.Load()
	if state.session == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.server.url, http.NoBody)
	if err != nil {
		return fmt.Errorf("end the session with %s: %w", c.server.name, err)
	}
	c.head(req.Header, *state)
	resp, err := c.server.client.Do(req)
	if err != nil {
		return fmt.Errorf("end the session with %s: %w", c.server.name, err)
	}
	closeBody(resp)
	return nil
}

func (c *httpConn) head(h http.Header, state httpState) {
	maps.Copy(h, c.server.headers)
	if state.session != "" {
		h["Mcp-Session-Id"] = []string{state.session}
	}
	if state.version != "" {
		h["Mcp-Protocol-Version"] = []string{state.version}
	}
}

// post sends one message. An error says whether any byte of it may have left.
func (c *httpConn) post(ctx context.Context, req Request, state httpState) (*http.Response, error) {
	var left atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { left.Store(true) },
	})
	hr, err := http.NewRequestWithContext(ctx, http.MethodPost, c.server.url, bytes.NewReader(req.Body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	c.head(hr.Header, state)
	hr.Header["Content-Type"] = []string{"application/json"}
	hr.Header["Accept"] = []string{"application/json, text/event-stream"}
	if req.TraceParent != "" {
		hr.Header["Traceparent"] = []string{req.TraceParent}
	}
	hr.GetBody = nil // a POST is never sent twice behind our back
	resp, err := c.server.client.Do(hr)
	switch {
	case err == nil:
		return resp, nil
	case !left.Load():
		return nil, fmt.Errorf("%w: %s: %w", ErrNeverSent, c.server.name, err)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: %s", ErrTimeout, c.server.name)
	default:
		return nil, fmt.Errorf("%w: %s: %w", ErrNoAnswer, c.server.name, err)
	}
}

// answer reads the answer to req out of a response: one JSON message, or the
// messages of an event stream up to the answer.
func (c *httpConn) answer(resp *http.Response, req Request, events func([]byte)) (*gate.Answer, error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch kind {
	case "application/json":
		body, err := readBody(resp)
		if err != nil {
			return nil, c.unusable(resp, err)
		}
		message, err := readAnswer(body, req.ID)
		if err != nil {
			return nil, c.unusable(resp, err)
		}
		return message, nil
	case "text/event-stream":
		message, err := readEvents(resp.Body, req.ID, events)
		if err != nil {
			return nil, c.unusable(resp, err)
		}
		return message, nil
	default:
		return nil, c.unusable(resp, fmt.Errorf("the content type is %q", kind))
	}
}

// unusable says what is known of a request whose answer can't be used. Some
// statuses say that the server turned the request away before it read it.
func (c *httpConn) unusable(resp *http.Response, err error) error {
	what := ErrNoAnswer
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusTooManyRequests:
		what = ErrNeverSent
	}
	if errors.Is(err, context.DeadlineExceeded) {
		what = ErrTimeout
	}
	return fmt.Errorf("%w: %s answered %d: %w", what, c.server.name, resp.StatusCode, err)
}

// readAnswer reads a message that must be the answer to the request with that id.
func readAnswer(raw, id []byte) (*gate.Answer, error) {
	message, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	switch {
	case err != nil:
		return nil, err
	case message.Kind != gate.Response:
		return nil, errors.New("the message is no response")
	case !gate.SameID(message.ID.Of(raw), id):
		return nil, errors.New("the response has another id")
	case forged(message):
		return nil, errForged
	default:
		return message, nil
	}
}

// versionOf returns the protocol revision in an answer to initialize; empty
// where it names none.
func versionOf(a *gate.Answer) string {
	raw := a.ProtocolVersion.Of(a.Raw)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	return string(raw[1 : len(raw)-1])
}

// readBody reads a body of at most MaxMessage bytes.
func readBody(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > MaxMessage {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", resp.ContentLength, MaxMessage)
	}
	var buf bytes.Buffer
	if resp.ContentLength > 0 {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, MaxMessage+1))
	if err != nil {
		return nil, err
	}
	if n > MaxMessage {
		return nil, fmt.Errorf("the answer is larger than %d bytes", MaxMessage)
	}
	return buf.Bytes(), nil
}

// closeBody reads what little may be left, so that the connection can be used
// again, and closes.
func closeBody(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

// idleTimeout is how long an unused connection to a server is kept.
const idleTimeout = 90 * time.Second
