// Package streamable connects to MCP servers over Streamable HTTP (MCP 2025-11-25, "Transports"), and over HTTP+SSE
// (MCP 2024-11-05) to servers that have nothing else.
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

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wire"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/scrub"
)

// Config describes a server on Streamable HTTP.
type Config struct {
	// Name is the server's configured name.
	Name string
	// URL is its MCP endpoint, http or https.
	URL string
	// Headers are sent with every request, with references resolved.
	Headers map[string]string
	// Proxy is the http or https URL of the proxy for an https server, with its credentials; empty for none.
	Proxy string
	// CA is a PEM file with the only trusted certificates; empty for those of the system.
	CA string
	// ProxyHint is added to the error if an https server can't be reached, because a proxy may be needed; may be empty.
	ProxyHint string
	// Secrets are values that no answer may contain. Those of at least 8 bytes are redacted from answers.
	Secrets []string
}

// Header fields that only the gateway sets; configured values are ignored.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerTrace   = "Traceparent"
	headerLast    = "Last-Event-Id"
)

// Transport connects to one server. Nothing that a client sent goes into its configured headers.
type Transport struct {
	name string
	// hint says what to do if the server can't be reached; may be empty.
	hint string
	// post, remove and get are the heads of messages, of the ends of sessions, and of streams.
	post, remove, get *wire.Head
	// url and headers are the configured ones, for the endpoints that servers on HTTP+SSE name.
	url     *url.URL
	headers http.Header
	clean   *scrub.Scrubber
	// secrets are the values that clean redacts. cookie is the configured value of the field Cookie; may be empty.
	secrets []string
	cookie  string
	// told redacts the parts of a server's redirect address that are shown.
	told *scrub.Scrubber
	// links counts the goroutines of HTTP+SSE streams. older is set if the server speaks HTTP+SSE.
	links sync.WaitGroup
	// all ends when stop is called, which closes the transport.
	all   context.Context //nolint:containedctx // it is the transport's own
	stop  context.CancelFunc
	older atomic.Bool
	// opened is set once the server has opened a session.
	opened atomic.Bool
	// newer is when the server last turned out not to speak HTTP+SSE, in nanoseconds of Unix time.
	newer atomic.Int64
	// wire follows no redirects: an address comes only from the configuration.
	wire *wire.Wire
	log  *slog.Logger
	upstream.ListChanged
}

// New returns a transport to a server. It connects when a session is opened. A log is required.
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
	cookie := headers.Get("Cookie") // sent as one field together with the cookies that the server sets
	headers.Del("Cookie")
	way, err := cfg.way(u)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", cfg.Name, err)
	}
	all, stop := context.WithCancel(context.Background())
	s := &Transport{
		name: cfg.Name, hint: cfg.ProxyHint, all: all, stop: stop, secrets: cfg.Secrets, cookie: cookie,
		clean: scrub.New(nil, cfg.Secrets), told: scrub.Every(cfg.Secrets), log: log, wire: way,
	}
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

// way returns what sends requests to the server. Its errors contain no credentials.
func (c *Config) way(u *url.URL) (*wire.Wire, error) {
	var opts wire.Options
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
	return wire.New(u, opts)
}

// head returns the encoded head of the requests of one method to a server.
func head(method string, u *url.URL, headers http.Header) (*wire.Head, error) {
	return wire.NewHead(&http.Request{
		Method: method, URL: u, Host: strings.TrimSuffix(u.Host, ":"), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: headers,
	})
}

// isHeader reports whether a header with this name and value can be sent (RFC 9110, section 5).
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
	s.wire.CloseIdleConnections()
	return nil
}

// Open implements upstream.Transport. Each session of a client gets a session of its own with the server.
func (s *Transport) Open(ctx context.Context, _ principal.Key, hello upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if hello.Kind() != gate.Request {
		return nil, upstream.Answer{}, fmt.Errorf("%w: a session is opened with a request", upstream.ErrNeverSent)
	}
	has := hello.Room
	// The message is stored as long as the session, and the buffer that it lies in is not.
	hello.Message, hello.Room = hello.Message.Clone(), nil
	initializes := hello.Method() == mcp.MethodInitialize
	if initializes && s.older.Load() {
		c, answer, err := s.openLegacy(ctx, hello, has)
		switch {
		case err == nil:
			return c, answer, nil
		case !errors.Is(err, errNotOlder):
			return nil, answer, err
		}
		s.older.Store(false) // the server has been upgraded
	}
	c := &conn{server: s, initialize: hello, turn: make(chan struct{}, 1)}
	state, answer, err := c.handshake(ctx, has)
	if err == nil {
		if state.session != "" && !answer.Message.Error.Present() {
			s.opened.Store(true)
		}
		c.state.Store(state)
		return c, answer, nil
	}
	if !initializes || errors.Is(err, upstream.ErrOneSession) || !answer.Refuses() || time.Since(time.Unix(0, s.newer.Load())) < newerFor {
		return nil, answer, err
	}
	old, greeting, failed := s.openLegacy(ctx, hello, has) // MCP 2025-11-25, Transports, Backwards Compatibility
	if failed == nil {
		s.older.Store(true)
		return old, greeting, nil
	}
	if errors.Is(failed, errNotOlder) {
		s.newer.Store(time.Now().UnixNano())
	}
	s.log.DebugContext(ctx, "server refuses a session, and has no HTTP+SSE stream", "server", s.name, "error", upstream.ForLog(failed))
	if upstream.CauseOf(failed) != nil && upstream.CauseOf(err) == nil { // the error of the HTTP+SSE attempt names a cause
		return nil, answer, upstream.Recast(upstream.ClassOf(err), s.name, failed)
	}
	return nil, answer, err
}

// newerFor is how long a server without an HTTP+SSE stream is not asked for one again.
const newerFor = time.Minute
