// Package httpserver is the gateway's HTTP server. It limits connections and slow clients, checks Host and Origin, and
// authenticates callers.
package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
)

const (
	// headerTimeout is the timeout for reading the head of a request. readTimeout is the timeout for reading the whole
	// request, including a body that is not used.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	// idleTimeout is how long an unused client connection stays open.
	idleTimeout = 2 * time.Minute
	// sendBuffer is the size of the socket's send buffer in bytes. The operating system takes up to twice as much. The
	// buffer is not charged to any caller. The larger it is, the later the gateway notices a slow reader.
	sendBuffer = 128 << 10
	// maxHeader is the maximum size of a request's head, in bytes.
	maxHeader = 32 << 10
)

// Config says which requests are accepted. The zero value accepts requests to loopback names and from origins on
// loopback.
type Config struct {
	// Hosts are host names that are accepted in addition to loopback names, without ports, in lower case.
	Hosts []string
	// Origins are accepted in addition to origins on loopback.
	Origins []string
	// Proxies are the networks of trusted proxies. The gateway uses the client address that these proxies forward.
	Proxies []netip.Prefix
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	Tokens *authn.Tokens
	// Admission counts a request that was refused before its caller was identified.
	Admission func(code, peer string)
	// Panicked logs a panic of a handler.
	Panicked func(ctx context.Context, what any)
	Meters   *meters.Meters
	Log      *slog.Logger
}

// Server checks and authenticates HTTP requests. It is safe for concurrent use.
type Server struct {
	cfg  Config
	deps Deps
}

// New returns a server.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Tokens == nil || deps.Admission == nil || deps.Panicked == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("httpserver: every dependency is required")
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Guard returns a handler that passes only requests to accepted hosts and from accepted origins to next.
func (s *Server) Guard(next http.Handler) http.Handler { return s.checkSite(s.withCORS(next)) }

// HTTP returns an HTTP server with this handler. It closes connections of clients that send or read too slowly, so that
// no client can hold a connection, a session or a call for longer than the timeouts of this package allow.
func (s *Server) HTTP(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           s.withWriteDeadlines(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       onConnect,
		Protocols:         http1(),
		ErrorLog:          slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
}

// http1 returns the protocols for connections: only HTTP/1, even over TLS. Therefore a limit per connection is also a
// limit per request in flight.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Listen wraps lis in a listener that limits connections: unauthenticated connections in total and per address, and
// connections per caller. Trusted proxies must limit connections themselves.
func (s *Server) Listen(lis net.Listener) (*connlimit.Listener, error) {
	return connlimit.Listen(lis, connlimit.Limits{
		MaxUnauthenticated: 1024, MaxPerAddress: 256, MaxPerCaller: 1024, IdentifyTimeout: 15 * time.Second, IsTrusted: s.trusted, MaxProxied: 4096,
	}, s.deps.Log)
}

type connKey struct{}

// onConnect sets the send buffer of a connection, and stores the connection in the context of its requests.
func onConnect(ctx context.Context, c net.Conn) context.Context {
	for c != nil {
		switch at := c.(type) {
		case *net.TCPConn:
			_ = at.SetWriteBuffer(sendBuffer) // otherwise the system chooses the size
			return ctx
		case *connlimit.Conn:
			ctx = context.WithValue(ctx, connKey{}, at)
		}
		under, ok := c.(interface{ NetConn() net.Conn }) // connections of TLS and of the listener contain the TCP connection
		if !ok {
			return ctx
		}
		c = under.NetConn()
	}
	return ctx
}

// mayConnect reports whether a caller may have an additional connection, which is the connection of the current
// request.
func mayConnect(ctx context.Context, p *identityv1.Principal) bool {
	at, ok := ctx.Value(connKey{}).(*connlimit.Conn)
	return !ok || at.IsIdentified() || at.Identify(p.GetTenant()+"/"+p.GetSubject())
}
