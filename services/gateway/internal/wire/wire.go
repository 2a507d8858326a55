// Package wire carries HTTP to servers: over connections that it keeps, without handing
// requests over to other goroutines, and to no address that is not meant. It knows nothing
// of MCP.
package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxRequest is the largest request that a wire carries, in bytes: no more than
	// any system holds between two ends, so that writing it waits for nobody.
	MaxRequest = 32 << 10
	// maxHead bounds an answer's head, in bytes.
	maxHead = 64 << 10
	// wireBuffer is the size of each of a connection's two buffers, in bytes.
	wireBuffer = 8 << 10
)

// ErrNeverSent is wrapped by the error of a request of whose body no byte can have left.
var ErrNeverSent = errors.New("nothing was sent")

// neverSentError is why nothing was.
type neverSentError struct{ error }

// Unwrap says so beside the reason.
func (e neverSentError) Unwrap() []error { return []error{ErrNeverSent, e.error} }

// A Wire is an http.RoundTripper for one server. To one in plain HTTP/1.1 the goroutine that
// makes a request writes it and reads the answer by itself, where net/http's own
// transport hands each over to two others: on a call's path those hand-overs cost
// more than everything that the gateway decides. Large requests go through rest,
// which reads while it writes and so hears a server that answers before it has
// read everything, and so do all over TLS. It is safe for concurrent use.
type Wire struct {
	addr string // empty over TLS
	rest *http.Transport

	mu   sync.Mutex
	idle []*wireConn // the one used last at the end
}

// wireConn is a connection; one request at a time has it.
type wireConn struct {
	net.Conn
	limit io.LimitedReader
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time
}

// RoundTrip implements http.RoundTripper. Nothing is ever sent twice. An error wraps
// [ErrNeverSent] where nothing can have been.
func (w *Wire) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if w.addr == "" || req.ContentLength < 0 || req.ContentLength > MaxRequest {
		return w.throughRest(req)
	}
	if req.Body != nil {
		defer req.Body.Close() //nolint:errcheck // it was read
	}
	if ctx.Err() != nil {
		return nil, neverSentError{ctx.Err()}
	}
	c, err := w.take(ctx)
	if err != nil {
		return nil, neverSentError{err}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	resp, err := c.exchange(req)
	if err != nil {
		stop()
		return nil, errors.Join(reason(ctx, err), c.Close())
	}
	body := &wireBody{inner: resp.Body, ctx: ctx, done: func(whole bool) {
		if stop() && whole && !resp.Close && c.in.Buffered() == 0 {
			w.put(c)
			return
		}
		_ = c.Close() // nothing is expected of it any more
	}}
	if resp.Body == http.NoBody {
		body.end(true)
	}
	resp.Body = body
	return resp, nil
}

// throughRest sends a request by net/http's transport.
func (w *Wire) throughRest(req *http.Request) (*http.Response, error) {
	var left atomic.Bool
	resp, err := w.rest.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		WroteHeaders: func() { left.Store(true) }, // before the body, which is not begun once RoundTrip has returned
	})))
	if err != nil && !left.Load() {
		err = neverSentError{err}
	}
	return resp, err
}

// exchange writes a request and reads the head of its answer.
func (c *wireConn) exchange(req *http.Request) (*http.Response, error) {
	if err := req.Write(c.out); err != nil {
		return nil, err
	}
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	c.limit.N = maxHead
	for {
		resp, err := http.ReadResponse(c.in, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 {
			c.limit.N = math.MaxInt64
			return resp, nil
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("the server answered %s", resp.Status)
		}
	}
}

// take returns a connection that nobody uses, or a new one, with the deadline of
// ctx.
func (w *Wire) take(ctx context.Context) (*wireConn, error) {
	deadline, _ := ctx.Deadline()
	for c := w.pop(); c != nil; c = w.pop() {
		err := c.SetDeadline(deadline)
		if err == nil && time.Since(c.since) < idleTimeout && alive(c.Conn) {
			return c, nil
		}
		_ = c.Close() // the server has closed it, or something between has forgotten it
	}
	conn, err := w.rest.DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, limit: io.LimitedReader{R: conn}, out: bufio.NewWriterSize(conn, wireBuffer)}
	c.in = bufio.NewReaderSize(&c.limit, wireBuffer)
	return c, conn.SetDeadline(deadline)
}

func (w *Wire) pop() *wireConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.idle)
	if n == 0 {
		return nil
	}
	c := w.idle[n-1]
	w.idle = w.idle[:n-1]
	return c
}

// put keeps a connection for the next request, and closes the one that was unused
// longest where that is too long.
func (w *Wire) put(c *wireConn) {
	c.since = time.Now()
	w.mu.Lock()
	w.idle = append(w.idle, c)
	var old *wireConn
	if len(w.idle) > maxIdle || c.since.Sub(w.idle[0].since) > idleTimeout {
		old, w.idle = w.idle[0], w.idle[1:]
	}
	w.mu.Unlock()
	if old != nil {
		_ = old.Close() // nobody uses it
	}
}

// CloseIdleConnections closes what nobody uses; http.Client finds it by its name.
func (w *Wire) CloseIdleConnections() {
	w.rest.CloseIdleConnections()
	for c := w.pop(); c != nil; c = w.pop() {
		_ = c.Close() // nobody uses it
	}
}

// wireBody is an answer's body. Once it is read to its end the connection is free;
// where it is closed before, the connection is closed too.
type wireBody struct {
	inner io.Reader
	ctx   context.Context //nolint:containedctx // why reading failed is the request's to say
	done  func(whole bool)
	ended atomic.Bool // Close may come while a Read waits
}

// Read implements io.Reader.
func (b *wireBody) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, io.EOF
	}
	n, err := b.inner.Read(p)
	if err == nil {
		return n, nil
	}
	b.end(errors.Is(err, io.EOF))
	if !errors.Is(err, io.EOF) {
		err = reason(b.ctx, err)
	}
	return n, err
}

// Ended tells whether the answer was read to its end, or closed.
func (b *wireBody) Ended() bool { return b.ended.Load() }

// Close implements io.Closer.
func (b *wireBody) Close() error {
	b.end(false)
	return nil
}

func (b *wireBody) end(whole bool) {
	if b.ended.CompareAndSwap(false, true) {
		b.done(whole)
	}
}

// reason is why a connection failed: where the request's time was up, that.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
