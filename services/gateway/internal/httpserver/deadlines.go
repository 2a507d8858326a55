package httpserver

import (
	"net/http"
	"time"
)

const (
	// writeTimeout is how long a client may take to read each piece of at most maxPiece bytes. Once the gateway has
	// waited for the client for a total of writeTimeout, the client must read at an average rate of at least minRate,
	// in bytes per second. Only the time during which the gateway waits for the client counts. There is no timeout for
	// the whole answer, because a call may take a long time.
	writeTimeout = 10 * time.Second
	maxPiece     = 64 << 10
	minRate      = 64 << 10
)

// withWriteDeadlines limits how long a client may take to read an answer. It also logs panics of handlers.
func (s *Server) withWriteDeadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if panicked := recover(); panicked != nil {
				s.deps.Panicked(r.Context(), panicked)
				panic(http.ErrAbortHandler) // without this panic, the client could not detect that the answer is incomplete
			}
		}()
		if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
			// A proxy may disagree with the gateway about where this request ends (RFC 9112, sections 6.1 and 11.2).
			// The connection is therefore closed after the response.
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(&deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w)}, r)
	})
}

// deadlineWriter sets a write deadline for each piece of an answer. If the client does not read a piece before the
// deadline, the connection is closed.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	// written is the number of bytes written. waited is the total time that the writes have taken.
	written int64
	waited  time.Duration
}

// Unwrap returns the underlying writer, so that http.ResponseController finds its methods.
func (w *deadlineWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *deadlineWriter) WriteHeader(status int) {
	w.setDeadline()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *deadlineWriter) Write(p []byte) (written int, err error) {
	for err == nil && written < len(p) {
		begin := w.setDeadline()
		var n int
		n, err = w.ResponseWriter.Write(p[written:min(len(p), written+maxPiece)])
		w.waited += time.Since(begin)
		w.written += int64(n)
		written += n
	}
	return written, err
}

// FlushError implements the method that http.ResponseController calls. It sets a deadline first, because a flush also
// writes to the client.
func (w *deadlineWriter) FlushError() error {
	begin := w.setDeadline()
	err := w.control.Flush()
	w.waited += time.Since(begin)
	return err
}

// setDeadline sets the write deadline for the next piece. The deadline is earlier if the client has read slowly so far.
func (w *deadlineWriter) setDeadline() (now time.Time) {
	now = time.Now()
	earned := time.Duration(float64(w.written) / minRate * float64(time.Second))
	remaining := writeTimeout + earned - w.waited
	_ = w.control.SetWriteDeadline(now.Add(min(writeTimeout, remaining))) // only transports in tests have no deadlines
	return now
}
