// Package streamable connects to MCP servers over Streamable HTTP (MCP 2025-11-25, Transports). For servers that
// support only HTTP+SSE (MCP 2024-11-05), it uses that transport.
package streamable

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Config describes a server with an HTTP endpoint.
type Config struct {
	// Name is the server's configured name.
	Name string
	// URL is the server's MCP endpoint. Its scheme is http or https.
	URL string
	// Headers are sent with every request. References to secrets must already be resolved.
	Headers map[string]string
	// Proxy is the http or https URL of the proxy for an https server. It can contain credentials. It is empty if no proxy
	// is used.
	Proxy string
	// CA is the path of a PEM file. Only the certificates in that file are trusted. If CA is empty, the system's
	// certificates are trusted.
	CA string
	// ProxyHint is appended to the error if an https server cannot be reached. It suggests that a proxy may be necessary.
	// It may be empty.
	ProxyHint string
	// Secrets are values that are redacted in answers. Values shorter than 8 bytes are not redacted.
	Secrets []string
	// Tokens provides the access token for each request. It is nil if the server does not require OAuth.
	Tokens *accesstoken.Source
}

// Only the gateway sets these headers. Configured values for them are ignored.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerTrace   = "Traceparent"
	headerLast    = "Last-Event-Id"
)

// Transport connects to one server. Its configured headers contain no client data.
type Transport struct {
	name string
	// hint is appended to the error if the server cannot be reached. It may be empty.
	hint string
	// post, remove and get are encoded request heads (request lines and headers). post is for sending messages, remove for
	// ending sessions, and get for opening streams.
	post, remove, get *httpclient.Head
	// url and headers are the configured values. They are used for the endpoints of servers with HTTP+SSE.
	url     *url.URL
	headers http.Header
	// secrets are the values that are redacted in answers. cookie is the configured value of the header Cookie, which may
	// be empty.
	secrets atomic.Pointer[secrets]
	cookie  string
	// tokens provides access tokens. It is nil if the server does not require OAuth.
	tokens *accesstoken.Source
	// links counts the goroutines of HTTP+SSE streams. speaksSSE is true if the server supports HTTP+SSE.
	links sync.WaitGroup
	// all is the context of all operations of the transport. stop cancels it when the transport is closed.
	all       context.Context //nolint:containedctx // the context of the transport
	stop      context.CancelFunc
	speaksSSE atomic.Bool
	// opened is true if the server has ever opened a session.
	opened atomic.Bool
	// notSSESince is the time at which the gateway last found that the server does not support HTTP+SSE, in nanoseconds
	// of Unix time.
	notSSESince atomic.Int64
	// client follows no redirects, because only the configuration may set addresses.
	client *httpclient.Client
	log    *slog.Logger
	upstream.ListChanged
}

// New returns a transport to a server. It does not connect to the server before a session is opened. log is required.
func New(cfg Config, log *slog.Logger) (*Transport, error) {
	if log == nil {
		return nil, errors.New("streamable: a log is required")
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("server %s: %q is not the URL of an MCP endpoint", cfg.Name, config.ShownURL(cfg.URL))
	}
	headers := make(http.Header, len(cfg.Headers))
	for key, value := range cfg.Headers {
		if !isHeader(key, value) {
			return nil, fmt.Errorf("server %s: the header %q can't be sent: its name or value contains a character that is not allowed in headers", cfg.Name, key)
		}
		headers.Set(key, value)
	}
	if name := u.User.Username(); u.User != nil && headers.Get("Authorization") == "" {
		password, _ := u.User.Password()
		headers.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(name+":"+password))) // RFC 7617
	}
	for _, own := range []string{headerSession, headerVersion, headerTrace, headerLast, headerMethod, headerName} {
		headers.Del(own)
	}
	cookie := headers.Get("Cookie") // the cookie is sent in one header, together with the cookies that the server sets
	headers.Del("Cookie")
	way, err := cfg.newClient(u)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
	}
	all, stop := context.WithCancel(context.Background())
	s := &Transport{
		name: cfg.Name, hint: cfg.ProxyHint, all: all, stop: stop, cookie: cookie, tokens: cfg.Tokens, log: log, client: way,
	}
	s.secrets.Store(newSecrets(cfg.Secrets, nil))
	if s.remove, err = head(http.MethodDelete, u, headers); err != nil {
		return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
	}
	headers.Set("Accept", typeEvents)
	if s.get, err = head(http.MethodGet, u, headers); err != nil {
		return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
	}
	headers.Set("Content-Type", typeJSON)
	headers.Set("Accept", typeJSON+", "+typeEvents)
	s.url, s.headers = &url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery}, headers
	if s.post, err = head(http.MethodPost, u, headers); err != nil {
		return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
	}
	return s, nil
}

// newClient returns the HTTP client for the server. The client's errors contain no credentials.
func (c *Config) newClient(u *url.URL) (*httpclient.Client, error) {
	var opts httpclient.Options
	if c.CA != "" {
		text, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("read the certificates to trust (http.ca): %w", err)
		}
		if opts.Roots = x509.NewCertPool(); !opts.Roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s contains no certificates in PEM (http.ca)", c.CA)
		}
	}
	if c.Proxy != "" {
		proxy, err := url.Parse(c.Proxy)
		if err != nil || proxy.Hostname() == "" || proxy.Scheme != "http" && proxy.Scheme != "https" {
			return nil, errors.New("http.proxy is not the http or https URL of a proxy, or env")
		}
		opts.Proxy = proxy
	}
	return httpclient.New(u, opts)
}

// head encodes the request line and the headers of requests to a server with the given HTTP method.
func head(method string, u *url.URL, headers http.Header) (*httpclient.Head, error) {
	return httpclient.NewHead(&http.Request{
		Method: method, URL: u, Host: strings.TrimSuffix(u.Host, ":"), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: headers,
	})
}

// isHeader reports whether a header with the given name and value can be sent (RFC 9110, section 5).
func isHeader(name, value string) bool {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" //nolint:gosec // the characters of an RFC 9110 token, not a credential
	return name != "" && strings.Trim(name, token) == "" &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// Kind implements upstream.Transport.
func (*Transport) Kind() string { return "http" }

// Close implements upstream.Transport.
func (s *Transport) Close() error {
	s.stop()
	s.links.Wait()
	s.client.CloseIdleConnections()
	return nil
}

// Open implements upstream.Transport. It opens a new session with the server for each call.
func (s *Transport) Open(ctx context.Context, _ principal.Key, hello upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if hello.Kind() != jsonrpc.Request {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with a request", upstream.ErrNeverSent)
	}
	memory := hello.Room
	// The message is copied because it is stored for as long as the session exists, but its buffer is reused.
	hello.Message, hello.Room = hello.Message.Clone(), nil
	initializes := hello.Method() == mcp.MethodInitialize
	if initializes && s.speaksSSE.Load() {
		c, answer, err := s.openLegacy(ctx, hello, memory)
		switch {
		case err == nil:
			return c, answer, nil
		case !errors.Is(err, errNoSSE):
			return nil, answer, err
		}
		s.speaksSSE.Store(false) // the server has been upgraded
	}
	c := &conn{server: s, initialize: hello, reopening: make(chan struct{}, 1)}
	state, answer, err := c.handshake(ctx, memory)
	if err == nil {
		if state.session != "" && !answer.Message.Error.Present() {
			s.opened.Store(true)
		}
		c.state.Store(state)
		c.watch()
		return c, answer, nil
	}
	if !initializes || errors.Is(err, upstream.ErrOneSession) || !answer.IsUnknownRequest() || time.Since(time.Unix(0, s.notSSESince.Load())) < sseRetryAfter {
		return nil, answer, err
	}
	old, greeting, failed := s.openLegacy(ctx, hello, memory) // MCP 2025-11-25, Transports, Backwards Compatibility
	if failed == nil {
		s.speaksSSE.Store(true)
		return old, greeting, nil
	}
	if errors.Is(failed, errNoSSE) {
		s.notSSESince.Store(time.Now().UnixNano())
	}
	s.log.DebugContext(ctx, "server refuses a session, and has no HTTP+SSE stream", "server", s.name, "error", upstream.ForLog(failed))
	// If only the attempt over HTTP+SSE has failed with a CauseError, return that error.
	if upstream.CauseOf(failed) != nil && upstream.CauseOf(err) == nil {
		return nil, answer, upstream.WithClass(upstream.ClassOf(err), s.name, failed)
	}
	return nil, answer, err
}

// sseRetryAfter is the minimum time before the gateway again requests an HTTP+SSE stream from a server that did not
// support it.
const sseRetryAfter = time.Minute
