package httpserver

import (
	"net/http"
	"time"
)

const (
	// writeTimeout is how long a client may take to read each piece of at most maxPiece bytes. slowest is how many
	// bytes a second it has to read on average in all the time that the gateway has waited for it, after the first
	// writeTimeout. An answer as a whole has no bound, because a call may take long.
	writeTimeout = 10 * time.Second
	maxPiece     = 64 << 10
	slowest      = 64 << 10
)

// bounded bounds the time that answers may take to be read, and logs panics.
func (s *Server) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if panicked := recover(); panicked != nil {
				s.deps.Panicked(r.Context(), panicked)
				panic(http.ErrAbortHandler) // so that the client does not take what it has for the whole answer
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

// boundedWriter sets a deadline for each piece of an answer. If a piece can't be written in time, the connection is
// closed.
type boundedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	// written is how many bytes were written, and waited how long that took.
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

// FlushError implements what http.ResponseController looks for: flushing writes, too.
func (w *boundedWriter) FlushError() error {
	begin := w.extend()
	err := w.control.Flush()
	w.waited += time.Since(begin)
	return err
}

// extend sets the deadline of the next piece, from now on, which is shorter for a client that has been slow.
func (w *boundedWriter) extend() (now time.Time) {
	now = time.Now()
	earned := time.Duration(float64(w.written) / slowest * float64(time.Second))
	left := writeTimeout + earned - w.waited
	_ = w.control.SetWriteDeadline(now.Add(min(writeTimeout, left))) // only transports of tests have no deadlines
	return now
}
