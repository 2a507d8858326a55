package edge

import (
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"
)

const (
	// headerTimeout bounds reading a request's head, and readTimeout reading it as a
	// whole, whoever sends it: also a body that nobody wants is waited for.
	headerTimeout = 10 * time.Second
	readTimeout   = 30 * time.Second
	// idleTimeout is how long an unused client connection is kept.
	idleTimeout = 2 * time.Minute
	// writeTimeout is how long a client may take to read each piece, of at most
	// maxPiece bytes, of what it is sent. There is no bound on an answer as a whole,
	// for a call may take long.
	writeTimeout = 10 * time.Second
	maxPiece     = 64 << 10
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
		ErrorLog:          slog.NewLogLogger(e.deps.Log.Handler(), slog.LevelDebug),
	}
}

// bounded bounds the time that answers may take to be read, and logs panics.
func (e *Edge) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if panicked := recover(); panicked != nil {
				e.deps.Log.ErrorContext(r.Context(), "request panicked", "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
				panic(http.ErrAbortHandler) // the client must not take what it has for the whole
			}
		}()
		next.ServeHTTP(&boundedWriter{ResponseWriter: w, control: http.NewResponseController(w)}, r)
	})
}

// boundedWriter gives each piece of an answer its time. What can't be written in
// it is lost, and with it the connection.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
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
		w.extend()
		var n int
		n, err = w.ResponseWriter.Write(p[written:min(len(p), written+maxPiece)])
		written += n
	}
	return written, err
}

func (w *boundedWriter) extend() {
	_ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a transport without deadlines is a test's
}
