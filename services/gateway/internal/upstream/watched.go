package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
)

// Watched is a server of which is known how it is, for people to see. It is safe
// for concurrent use.
type Watched struct {
	Server

	inFlight  atomic.Int32
	lastError atomic.Pointer[string]
}

// Watch returns a server with an eye on it.
func Watch(s Server) *Watched { return &Watched{Server: s} }

// InFlight is how many requests wait for their answers.
func (w *Watched) InFlight() int32 { return w.inFlight.Load() }

// LastError says why the last request had no usable answer; empty where it had
// one, or none was made. It is the same for every principal's eyes: it holds
// nothing that a server wrote, and nothing of a request.
func (w *Watched) LastError() string {
	if said := w.lastError.Load(); said != nil {
		return *said
	}
	return ""
}

// Open implements Server.
func (w *Watched) Open(ctx context.Context, who Principal, initialize Request) (Conn, Answer, error) {
	var conn Conn
	answer, err := w.watch(ctx, func() (answer Answer, err error) {
		conn, answer, err = w.Server.Open(ctx, who, initialize)
		return answer, err
	})
	if err != nil {
		return nil, answer, err
	}
	return &watchedConn{Conn: conn, server: w}, answer, nil
}

// watchedConn is a session with a watched server.
type watchedConn struct {
	Conn

	server *Watched
}

// Request implements Conn.
func (c *watchedConn) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	return c.server.watch(ctx, func() (Answer, error) { return c.Conn.Request(ctx, req, events) })
}

// watch notes what comes of a request.
func (w *Watched) watch(ctx context.Context, request func() (Answer, error)) (Answer, error) {
	w.inFlight.Add(1)
	defer w.inFlight.Add(-1)
	answer, err := request()
	switch {
	case err == nil:
		w.lastError.Store(nil)
	case errors.Is(ctx.Err(), context.Canceled),
		errors.Is(err, errCancelled), errors.Is(err, errConnClosed), errors.Is(err, errShutdown):
		// It was our side that ended the request, which says nothing about the server.
	default:
		w.lastError.Store(new(Why(answer, err)))
	}
	return answer, err
}

// Why says why a request has no usable answer, in words that are ours alone: the
// error's own may quote what a server wrote.
func Why(a Answer, err error) string {
	said := classOf(err).Error()
	if a.Status >= http.StatusMultipleChoices {
		return fmt.Sprintf("%s: HTTP status %d", said, a.Status)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return said + ": there is no such file"
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return said + ": " + number.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return said + ": its host name was not resolved"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return said + ": its certificate can't be verified"
	}
	return said
}
