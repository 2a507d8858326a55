// Package httpserver is the HTTP server of the gateway. It bounds connections and slow clients, checks Host and Origin,
// and authenticates callers.
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
	"github.com/sluice-mesh/sluice/services/internal/door"
)

const (
	// headerTimeout bounds reading the head of a request, and readTimeout reading all of it, also of a body that is
	// not used.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	// idleTimeout is how long an unused client connection is kept.
	idleTimeout = 2 * time.Minute
	// sendBuffer is the socket's send buffer in bytes; the system takes up to twice that. It counts for no caller, and
	// the larger it is, the later a slow reader is noticed.
	sendBuffer = 128 << 10
	// maxHeader is the largest head of a request in bytes.
	maxHeader = 32 << 10
)

// Config says which requests are accepted. The zero value accepts those to and from loopback names.
type Config struct {
	// Hosts are accepted in addition to loopback names, without ports, in lower case.
	Hosts []string
	// Origins are accepted in addition to those on loopback.
	Origins []string
	// Proxies are trusted: the client address that they forward is used.
	Proxies []netip.Prefix
}

// Deps are the live objects that a [Server] works with. Every field is required.
type Deps struct {
	Tokens *authn.Tokens
	// Admission counts a request that was refused before its caller was identified.
	Admission func(code, peer string)
	// Panicked logs a panic of a handler.
	Panicked func(ctx context.Context, what any)
	Meters   *meters.Meters
	Log      *slog.Logger
}

// Server admits requests. It is safe for concurrent use.
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

// Guard lets only requests to accepted hosts, and of accepted origins, through to next.
func (s *Server) Guard(next http.Handler) http.Handler { return s.sameSite(s.shared(next)) }

// HTTP returns an HTTP server with this handler. It cuts off clients that send or read slowly, so that no client holds a
// connection, a session or a call for longer than the bounds above.
func (s *Server) HTTP(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           s.bounded(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       connected,
		Protocols:         http1(),
		ErrorLog:          slog.NewLogLogger(s.deps.Log.Handler(), slog.LevelDebug),
	}
}

// http1 allows HTTP/1 only, also over TLS: then a bound of a connection is a bound of a request.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Listen bounds the connections of a listener: unauthenticated ones in all and for each address, and those of each
// caller. Trusted proxies bound their own.
func (s *Server) Listen(lis net.Listener) (*door.Listener, error) {
	return door.Listen(lis, door.Limits{
		Strangers: 1024, PerAddress: 256, PerCaller: 1024, Identify: 15 * time.Second, Trusted: s.trusted, Proxied: 4096,
	}, s.deps.Log)
}

type doorKey struct{}

// connected sets the send buffer of a connection, and keeps the connection for its requests.
func connected(ctx context.Context, c net.Conn) context.Context {
	for c != nil {
		switch at := c.(type) {
		case *net.TCPConn:
			_ = at.SetWriteBuffer(sendBuffer) // otherwise the system chooses
			return ctx
		case *door.Conn:
			ctx = context.WithValue(ctx, doorKey{}, at)
		}
		under, ok := c.(interface{ NetConn() net.Conn }) // of TLS and of the listener
		if !ok {
			return ctx
		}
		c = under.NetConn()
	}
	return ctx
}

// hasRoom reports whether a caller may have the connection that its request came on.
func hasRoom(ctx context.Context, p *identityv1.Principal) bool {
	at, ok := ctx.Value(doorKey{}).(*door.Conn)
	return !ok || at.Known() || at.Identified(p.GetTenant()+"/"+p.GetSubject())
}
