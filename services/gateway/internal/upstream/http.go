package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// idleTimeout is how long an unused connection to a server is kept.
const idleTimeout = 90 * time.Second

// HTTPConfig says how to reach a server over Streamable HTTP.
type HTTPConfig struct {
	// Name is the server's configured name.
	Name string
	// URL is its MCP endpoint, http or https.
	URL string
	// Headers are sent with every request, references resolved.
	Headers map[string]string
	// Secrets are values that no answer is to hold; those of at least 8 bytes are
	// blotted out of it.
	Secrets []string
}

// HTTP is a server that is reached over Streamable HTTP, MCP 2025-11-25,
// "Transports". Nothing that a client sent goes into its headers.
type HTTP struct {
	name    string
	url     string
	headers http.Header
	clean   *scrubber
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
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("server %s: %q is not the URL of an MCP endpoint", cfg.Name, cfg.URL)
	}
	headers := make(http.Header, len(cfg.Headers))
	for key, value := range cfg.Headers {
		if !isHeader(key, value) {
			return nil, fmt.Errorf("server %s: the header %q can't be sent: its name or its value holds a character that headers must not have", cfg.Name, key)
		}
		headers.Set(key, value)
	}
	return &HTTP{
		name:    cfg.Name,
		url:     cfg.URL,
		headers: headers,
		clean:   newScrubber(nil, cfg.Secrets),
		log:     log,
		client: &http.Client{
			Transport: newRoundTripper(u),
			CheckRedirect: func(*http.Request, []*http.Request) error {
				return http.ErrUseLastResponse // an address comes from the configuration alone
			},
		},
	}, nil
}

// isHeader tells whether a name and a value can be sent (RFC 9110, section 5).
func isHeader(name, value string) bool {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" //nolint:gosec // the characters of an RFC 9110 token, no credential
	return name != "" && strings.Trim(name, token) == "" &&
		!strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
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
func (s *HTTP) Open(ctx context.Context, _ principal.Key, initialize Request) (Conn, Answer, error) {
	if initialize.kind() != gate.Request {
		return nil, Answer{}, fmt.Errorf("%w: a session is opened with a request", ErrNeverSent)
	}
	has := initialize.Room
	// It is kept for as long as the session, and what it lies in is not.
	initialize.Message, initialize.Room = kept(initialize.Message), nil
	c := &httpConn{server: s, initialize: initialize, turn: make(chan struct{}, 1)}
	state, answer, err := c.handshake(ctx, has)
	if err != nil {
		return nil, answer, err
	}
	c.state.Store(state)
	return c, answer, nil
}

// withoutURL returns why a request failed without its URL, in which there may be
// a secret.
func withoutURL(err error) error {
	if own, ok := errors.AsType[*url.Error](err); ok {
		return own.Err
	}
	return err
}
