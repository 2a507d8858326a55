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
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Watched is a server of which is known how it is, for people to see and to measure.
// It is safe for concurrent use.
type Watched struct {
	Server

	meters    *meters.Meters
	transport string
	inFlight  atomic.Int32
	lastError atomic.Pointer[string]
}

// Watch returns a server with an eye on it.
func Watch(s Server, m *meters.Meters) (*Watched, error) {
	if s == nil || m == nil {
		return nil, errors.New("upstream: a server to watch and meters are required")
	}
	return &Watched{Server: s, meters: m, transport: spans.Transport(s.Transport())}, nil
}

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
func (w *Watched) Open(ctx context.Context, who principal.Key, initialize Request) (Conn, Answer, error) {
	var conn Conn
	answer, err := w.watch(ctx, initialize.Method(), func() (answer Answer, err error) {
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
	return c.server.watch(ctx, req.Method(), func() (Answer, error) { return c.Conn.Request(ctx, req, events) })
}

// Notify implements Conn.
func (c *watchedConn) Notify(ctx context.Context, req Request) error {
	begin := time.Now()
	err := c.Conn.Notify(ctx, req)
	c.server.measure(ctx, req.Method(), Answer{}, err, begin)
	return err
}

// watch notes what comes of a request.
func (w *Watched) watch(ctx context.Context, method string, request func() (Answer, error)) (Answer, error) {
	w.inFlight.Add(1)
	defer w.inFlight.Add(-1)
	begin := time.Now()
	answer, err := request()
	w.measure(ctx, method, answer, err, begin)
	switch {
	case err == nil:
		w.lastError.Store(nil)
	case errors.Is(ctx.Err(), context.Canceled),
		errors.Is(err, errCancelled), errors.Is(err, errConnClosed), errors.Is(err, errShutdown), errors.Is(err, room.ErrFull):
		// It was our side that ended the request, which says nothing about the server.
	default:
		w.lastError.Store(new(Why(answer, err)))
	}
	return answer, err
}

func (w *Watched) measure(ctx context.Context, method string, a Answer, err error, begin time.Time) {
	o := meters.Operation{Method: method, Transport: w.transport}
	switch {
	case errors.Is(err, ErrNeverSent):
		o.ErrorType = meters.Unavailable
	case errors.Is(err, ErrTimeout):
		o.ErrorType = meters.Timeout
	case err != nil:
		o.ErrorType = meters.Unknown
	case a.Message != nil: // a notification has no answer
		o.ErrorType = spans.ErrorType(a.Message)
	}
	w.meters.Sent(ctx, o, time.Since(begin))
}

// Why says why a request has no usable answer, in words that are ours alone: the
// error's own may quote what a server wrote.
func Why(a Answer, err error) string {
	said := classOf(err).Error()
	if errors.Is(err, room.ErrFull) {
		return "its answer found no room: others are read, or sent, too slowly, or there are too many at once"
	}
	if errors.Is(err, ErrSlow) {
		return said + ": it sent a large one too slowly"
	}
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
