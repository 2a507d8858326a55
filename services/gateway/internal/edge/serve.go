package edge

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/door"
)

const (
	// headerTimeout bounds reading a request's head, and readTimeout reading it as a
	// whole, whoever sends it: also a body that nobody wants is waited for.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	// idleTimeout is how long an unused client connection is kept.
	idleTimeout = 2 * time.Minute
	// writeTimeout is how long a client may take to read each piece, of at most
	// maxPiece bytes, of what it is sent, and slowest how many bytes a second it has
	// to read in all the time that it was waited for, beyond the first writeTimeout.
	// There is no bound on an answer as a whole, for a call may take long.
	writeTimeout = 10 * time.Second
	maxPiece     = 64 << 10
	slowest      = 64 << 10
	// sendBuffer is how much the system is asked to hold for a client, in bytes; it
	// takes up to twice that. What it holds is no share of anybody's, and who reads
	// slowly is known the later the more it is.
	sendBuffer = 128 << 10
	// maxHeader is the largest head of a request, in bytes.
	maxHeader = 32 << 10
)

// Server returns an HTTP server of the edge. Clients that are slow to send or to
// read are cut off: none holds a connection, a session or a call for longer than
// the bounds above.
func (e *Edge) Server() *http.Server {
	return &http.Server{
		Handler:           e.bounded(e.Handler()),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       connected,
		Protocols:         http1(),
		ErrorLog:          slog.NewLogLogger(e.deps.Log.Handler(), slog.LevelDebug),
	}
}

// http1 is HTTP/1 alone: of TLS, too. What is bounded for a connection is then bounded
// for a request.
func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// Door bounds the connections of a listener: those of strangers, for each address, and
// those of each caller. Trusted proxies bound their own.
func (e *Edge) Door(lis net.Listener) (*door.Listener, error) {
	return door.Listen(lis, door.Limits{
		Strangers: 1024, PerAddress: 256, PerCaller: 1024, Identify: 15 * time.Second, Trusted: e.trusted, Proxied: 4096,
	}, e.deps.Log)
}

type doorKey struct{}

// connected bounds what the system holds for a connection, and keeps with its requests
// how it came in.
func connected(ctx context.Context, c net.Conn) context.Context {
	for c != nil {
		switch at := c.(type) {
		case *net.TCPConn:
			_ = at.SetWriteBuffer(sendBuffer) // else it is as large as the system likes
			return ctx
		case *door.Conn:
			ctx = context.WithValue(ctx, doorKey{}, at)
		}
		under, ok := c.(interface{ NetConn() net.Conn }) // TLS, and the door
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

// tooManyConnections refuses a connection that a principal has no room for.
func tooManyConnections() *refusal.Refusal {
	return refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, "this caller has too many connections; close some of them.")
}

// bounded bounds the time that answers may take to be read, and logs panics.
func (e *Edge) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if panicked := recover(); panicked != nil {
				e.panicked(r.Context(), panicked)
				panic(http.ErrAbortHandler) // the client must not take what it has for the whole
			}
		}()
		if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
			// A proxy may see the end of such a request elsewhere (RFC 9112, sections 6.1 and
			// 11.2): what follows on this connection is not read.
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(&boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}, r)
	})
}

// panicked logs a panic, which ends what it came of and nothing else.
func (e *Edge) panicked(ctx context.Context, what any) {
	e.deps.Log.ErrorContext(ctx, "request panicked", "panic", fmt.Sprint(what), "stack", string(debug.Stack()))
}

// boundedWriter gives each piece of an answer its time. What can't be written in
// it is lost, and with it the connection.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	// written is how many bytes were written, and waited how long the client was
	// waited for meanwhile.
	written int64
	waited  time.Duration
}

// Unwrap lets http.ResponseController find what else the writer can do.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *boundedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *boundedWriter) Write(p []byte) (written int, err error) {
	for err == nil && written < len(p) {
		begin := w.extend()
		var n int
		n, err = w.ResponseWriter.Write(p[written:min(len(p), written+maxPiece)])
		w.waited += time.Since(begin)
		w.written += int64(n)
		written += n
	}
	return written, err
}

// FlushError is what http.ResponseController looks for: it writes as well.
func (w *boundedWriter) FlushError() error {
	begin := w.extend()
	err := w.control.Flush()
	w.waited += time.Since(begin)
	return err
}

// extend gives a client that is not too slow so far its time for the next piece, from
// now on.
func (w *boundedWriter) extend() (now time.Time) {
	now = time.Now()
	earned := time.Duration(float64(w.written) / slowest * float64(time.Second))
	left := writeTimeout + earned - w.waited
	_ = w.control.SetWriteDeadline(now.Add(min(writeTimeout, left))) // a transport without deadlines is a test's
	return now
}
