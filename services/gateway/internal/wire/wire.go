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
	"strings"
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

// ErrUnreached is wrapped beside it where there was no connection, and none came about.
var ErrUnreached = errors.New("there is no connection")

// neverSentError is why nothing was.
type neverSentError struct{ error }

// Unwrap says so beside the reason.
func (e neverSentError) Unwrap() []error { return []error{ErrNeverSent, e.error} }

// A Wire sends requests to one server. To one in plain HTTP/1.1 the goroutine that makes a
// request writes it and reads the answer by itself, where net/http's own transport hands each
// over to two others: on a call's path those hand-overs cost more than everything that the
// gateway decides. Large requests go through rest, which reads while it writes and so hears a
// server that answers before it has read everything, and so do all over TLS. It is safe for
// concurrent use.
type Wire struct {
	addr string // empty over TLS
	rest *http.Transport

	mu   sync.Mutex
	idle []*wireConn // the one used last at the end
}

// wireConn is a connection; one request at a time has it.
type wireConn struct {
	net.Conn
	alive func() bool
	cut   func()
	limit io.LimitedReader
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time
}

// Send sends a body under a head that has these fields besides, and returns the answer's head;
// its body is to be read to its end, or closed. No body sends the head alone. Nothing is ever
// sent twice. An error wraps [ErrNeverSent] where nothing can have been. All ends with ctx.
func (w *Wire) Send(ctx context.Context, head *Head, fields []Field, body []byte) (*http.Response, error) {
	size := len(body)
	for _, f := range fields {
		size += len(f.Value)
		if strings.ContainsAny(f.Value, "\r\n\x00") {
			return nil, neverSentError{fmt.Errorf("the field %s would end before its value does", f.Name)}
		}
	}
	if w.addr == "" || size > MaxRequest {
		return w.throughRest(head.request(ctx, fields, body))
	}
	if ctx.Err() != nil {
		return nil, neverSentError{context.Cause(ctx)}
	}
	c, err := w.take(ctx)
	if err != nil {
		return nil, neverSentError{unreached(ctx, err)}
	}
	stop := context.AfterFunc(ctx, c.cut)
	resp, err := c.exchange(head, fields, body)
	if err != nil {
		stop()
		return nil, errors.Join(reason(ctx, err), c.Close())
	}
	answer := &wireBody{inner: resp.Body, ctx: ctx, wire: w, conn: c, stop: stop, closes: resp.Close}
	if resp.Body == http.NoBody {
		answer.end(true)
	}
	resp.Body = answer
	return resp, nil
}

// throughRest sends a request by net/http's transport. It has no GetBody: a POST is never sent
// twice behind our back.
func (w *Wire) throughRest(req *http.Request) (*http.Response, error) {
	var left atomic.Bool
	resp, err := w.rest.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		WroteHeaders: func() { left.Store(true) }, // before the body, which is not begun once RoundTrip has returned
	})))
	if err != nil && !left.Load() {
		err = neverSentError{unreached(req.Context(), err)}
	}
	return resp, err
}

// unreached says of an error of connecting that it is one, unless whoever wanted the connection
// gave it up.
func unreached(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) || ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	return err
}

// exchange writes a request and reads the head of its answer.
func (c *wireConn) exchange(head *Head, fields []Field, body []byte) (*http.Response, error) {
	head.write(c.out, fields, body)
	if err := c.out.Flush(); err != nil { // the first error of all that was written
		return nil, err
	}
	c.limit.N = maxHead
	for {
		resp, err := http.ReadResponse(c.in, head.req)
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

// take returns a connection that nobody uses, or a new one.
func (w *Wire) take(ctx context.Context) (*wireConn, error) {
	for c := w.pop(); c != nil; c = w.pop() {
		if time.Since(c.since) < idleTimeout && c.alive() {
			return c, nil
		}
		_ = c.Close() // the server has closed it, or something between has forgotten it
	}
	conn, err := w.rest.DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	c := &wireConn{Conn: conn, alive: watch(conn), limit: io.LimitedReader{R: conn}, out: bufio.NewWriterSize(conn, wireBuffer)}
	c.cut = func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	c.in = bufio.NewReaderSize(&c.limit, wireBuffer)
	return c, nil
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
	wire  *Wire
	conn  *wireConn
	// stop leaves the connection uncut when ctx ends, and reports whether it was not.
	stop func() bool
	// closes says that the server closes the connection behind the answer.
	closes bool
	ended  atomic.Bool // Close may come while a Read waits
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

// Ended reports whether the answer was read to its end, or closed.
func (b *wireBody) Ended() bool { return b.ended.Load() }

// Close implements io.Closer.
func (b *wireBody) Close() error {
	b.end(false)
	return nil
}

func (b *wireBody) end(whole bool) {
	if !b.ended.CompareAndSwap(false, true) {
		return
	}
	if b.stop() && whole && !b.closes && b.conn.in.Buffered() == 0 {
		b.wire.put(b.conn)
		return
	}
	_ = b.conn.Close() // nothing is expected of it any more
}

// reason is why a connection failed: where the request's time was up, that.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
