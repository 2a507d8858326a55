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
	// idleTimeout is how long an idle client connection stays open.
	idleTimeout = 2 * time.Minute
	// sendBuffer is the size of a socket's send buffer in bytes. The operating system may use twice as much. The buffer
	// does not count against any caller's quota. A larger buffer would delay the detection of slow readers.
	sendBuffer = 128 << 10
	// maxHeader is the maximum size of a request's head, in bytes.
	maxHeader = 32 << 10
)

// Config configures which requests are accepted. If Config has the zero value, only loopback host names and loopback
// origins are accepted.
type Config struct {
	// Hosts are host names that are accepted in addition to loopback names. They have no ports and are in lower case.
	Hosts []string
	// Origins are origins that are accepted in addition to loopback origins.
	Origins []string
	// Proxies are the networks of trusted proxies. The gateway accepts the client addresses that these proxies forward.
	Proxies []netip.Prefix
	// Resource is the URI of the mesh as a protected resource (RFC 9728), such as `https://mcp.example.com/mcp`. It is
	// empty if the mesh has no public URL.
	Resource string
	// StepUpClients are the OAuth clients whose refused calls are answered with the HTTP status 403 if the token lacks
	// a scope.
	StepUpClients []string
}

// Deps are the dependencies of a [Server]. Every field is required.
type Deps struct {
	Tokens *authn.Tokens
	// Scopes returns the OAuth scopes that calls to a server need, or those of all servers if the name is empty. For an
	// unknown server, it also returns the scopes of all servers. Scopes returns nil if no scopes are needed or if they
	// are not known.
	Scopes func(server string) []string
	// Admission counts a request that was refused before its caller was identified. peer is the client's address.
	Admission func(code, peer string)
	// Panicked logs the panic of a handler.
	Panicked func(ctx context.Context, what any)
	Meters   *meters.Meters
	Log      *slog.Logger
}

// Server checks and authenticates HTTP requests. It is safe for concurrent use.
type Server struct {
	cfg  Config
	deps Deps
}

// New returns a server, or an error if a dependency is missing.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Tokens == nil || deps.Scopes == nil || deps.Admission == nil || deps.Panicked == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("httpserver: every dependency is required")
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Guard returns a handler that calls next only for requests whose host and origin are accepted.
func (s *Server) Guard(next http.Handler) http.Handler { return s.checkSite(s.withCORS(next)) }

// HTTP returns an HTTP server with this handler. It closes connections to clients that send or read too slowly, so that
// no client can occupy a connection, a session or a call for longer than this package's timeouts allow.
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

// http1 returns the set of protocols that clients may use. Only HTTP/1 is allowed, even over TLS, so that a limit on
// connections is also a limit on the requests in flight.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Listen wraps lis in a listener that limits connections. It limits unauthenticated connections, in total and per
// address, and the connections of each caller. The connections of all trusted proxies have one common limit, so the
// proxies must limit the connections of their clients.
func (s *Server) Listen(lis net.Listener) (*connlimit.Listener, error) {
	return connlimit.Listen(lis, connlimit.Limits{
		MaxUnauthenticated: 1024, MaxPerAddress: 256, MaxPerCaller: 1024, IdentifyTimeout: 15 * time.Second, IsTrusted: s.trusted, MaxProxied: 4096,
	}, s.deps.Log)
}

type connKey struct{}

// onConnect sets the size of a connection's send buffer, and stores the connection in the context of the requests that
// arrive on it.
func onConnect(ctx context.Context, c net.Conn) context.Context {
	for c != nil {
		switch at := c.(type) {
		case *net.TCPConn:
			_ = at.SetWriteBuffer(sendBuffer) // without this call the system chooses the size
			return ctx
		case *connlimit.Conn:
			ctx = context.WithValue(ctx, connKey{}, at)
		}
		under, ok := c.(interface{ NetConn() net.Conn }) // connections of TLS and of the listener wrap the TCP connection
		if !ok {
			return ctx
		}
		c = under.NetConn()
	}
	return ctx
}

// mayConnect reports whether the number of the caller's connections is within the limit. The connection of the current
// request counts.
func mayConnect(ctx context.Context, p *identityv1.Principal) bool {
	at, ok := ctx.Value(connKey{}).(*connlimit.Conn)
	return !ok || at.IsIdentified() || at.Identify(p.GetTenant()+"/"+p.GetSubject())
}
