// Package wire sends HTTP requests to servers: over connections that it keeps, without passing requests to other
// goroutines, and never to an address that no configuration can mean. It knows nothing about MCP.
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
	// MaxRequest is the largest request that a wire writes itself, in bytes. It is no more than any system buffers on a
	// connection, so that writing never blocks.
	MaxRequest = 32 << 10
	// maxHead is the largest head of an answer, in bytes.
	maxHead = 64 << 10
	// wireBuffer is the size of each of a connection's two buffers, in bytes.
	wireBuffer = 8 << 10
)

// ErrNeverSent is wrapped by the error of a request of which no byte of the body can have left.
var ErrNeverSent = errors.New("nothing was sent")

// ErrUnreached is wrapped together with ErrNeverSent if no connection could be made.
var ErrUnreached = errors.New("there is no connection")

// neverSentError adds [ErrNeverSent] to a reason.
type neverSentError struct{ error }

// Unwrap returns ErrNeverSent and the reason.
func (e neverSentError) Unwrap() []error { return []error{ErrNeverSent, e.error} }

// A Wire sends requests to one server. On plain HTTP/1.1 the calling goroutine writes the request and reads the answer
// itself. The transport of net/http passes each request to two other goroutines, which costs more on a call's path than
// all decisions of the gateway. Large requests and all requests over TLS use rest: it reads while it writes, and so
// receives the answer of a server that answers before it has read everything. A Wire is safe for concurrent use.
type Wire struct {
	addr string // empty over TLS
	rest *http.Transport

	mu   sync.Mutex
	idle []*wireConn // the last used at the end
}

// wireConn is a connection, used by one request at a time.
type wireConn struct {
	net.Conn
	alive func() bool
	cut   func()
	limit io.LimitedReader
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time
}

// Send sends a body under a head with these additional fields, and returns the response. Its body must be read to the
// end, or closed. A nil body sends the head alone. A request is never sent twice. The error wraps [ErrNeverSent] if no
// byte of the body can have left. Everything ends with ctx.
func (w *Wire) Send(ctx context.Context, head *Head, fields []Field, body []byte) (*http.Response, error) {
	size := len(body)
	for _, f := range fields {
		size += len(f.Value)
		if strings.ContainsAny(f.Value, "\r\n\x00") {
			return nil, neverSentError{fmt.Errorf("the header %s contains a line break or NUL", f.Name)}
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

// throughRest sends a request by the transport of net/http. The request has no GetBody, so that a POST is never
// silently sent twice.
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

// unreached marks an error of connecting with [ErrUnreached], unless the caller gave up before the deadline.
func unreached(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) || ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	return err
}

// exchange writes a request and reads the head of its answer.
func (c *wireConn) exchange(head *Head, fields []Field, body []byte) (*http.Response, error) {
	head.write(c.out, fields, body)
	if err := c.out.Flush(); err != nil { // the first error of all writes
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

// take returns an unused connection, or a new one.
func (w *Wire) take(ctx context.Context) (*wireConn, error) {
	for c := w.pop(); c != nil; c = w.pop() {
		if time.Since(c.since) < idleTimeout && c.alive() {
			return c, nil
		}
		_ = c.Close() // the server has closed it, or a device on the path has forgotten it
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

// put keeps a connection for the next request. It closes the longest unused one if there are too many or it is too old.
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
		_ = old.Close() // it is unused
	}
}

// CloseIdleConnections closes the unused connections. http.Client calls it by its name.
func (w *Wire) CloseIdleConnections() {
	w.rest.CloseIdleConnections()
	for c := w.pop(); c != nil; c = w.pop() {
		_ = c.Close() // it is unused
	}
}

// wireBody is the body of a response. Reading it to the end frees the connection; closing it before closes the
// connection, too.
type wireBody struct {
	inner io.Reader
	ctx   context.Context //nolint:containedctx // why reading failed is the request's to say
	wire  *Wire
	conn  *wireConn
	// stop stops watching ctx for the connection, and reports whether ctx has not yet cut it.
	stop func() bool
	// closes means that the server closes the connection after the answer.
	closes bool
	ended  atomic.Bool // Close may be called during a Read
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
	_ = b.conn.Close() // nothing more is expected on it
}

// reason returns why a connection failed: the cause of ctx if that has ended.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
