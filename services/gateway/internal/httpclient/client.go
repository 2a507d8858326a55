// Package httpclient sends HTTP requests to servers. For plain HTTP/1.1 it has its own connection pool, and the calling
// goroutine itself sends the request and receives the response, unless the request is large. The package refuses to
// connect to addresses that configured hosts must not resolve to, such as link-local addresses. It knows nothing about
// MCP.
package httpclient

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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxRequest is the maximum size of a request that this package writes without net/http, in bytes. Every operating
	// system can buffer this many bytes per connection, so writing never blocks.
	MaxRequest = 32 << 10
	// maxHead is the maximum size of a response's head (status line and headers), in bytes.
	maxHead = 64 << 10
	// connBuffer is the size of a connection's read buffer and of its write buffer, in bytes.
	connBuffer = 8 << 10
	// maxDialed limits how many new connections are opened for one request.
	maxDialed = 3
)

// ErrNeverSent means that certainly no byte of a request's body was sent. The errors that [Client.Send] and
// [Client.SendWhen] return wrap it.
var ErrNeverSent = errors.New("nothing was sent")

// ErrUnreached means that no connection could be established for a request. The error of the request then wraps both
// ErrUnreached and ErrNeverSent.
var ErrUnreached = errors.New("there is no connection")

type neverSentError struct{ error }

// Unwrap returns ErrNeverSent and the reason why nothing was sent.
func (e neverSentError) Unwrap() []error { return []error{ErrNeverSent, e.error} }

// A Client sends requests to one server. With plain HTTP/1.1, the calling goroutine itself writes the request and reads
// the response. The transport of net/http would pass each request to two other goroutines, which takes longer than all
// of the gateway's checks of a call.
//
// Large requests and all requests over TLS are sent with a transport of net/http. The transport reads while it writes,
// so it receives the response even if the server responds before the server has read the whole request. A Client is
// safe for concurrent use.
type Client struct {
	addr      string // empty over TLS
	transport *http.Transport

	mu   sync.Mutex
	idle []*clientConn // the connection that has been idle for longest is first
}

// clientConn is a connection to a server. Only one request at a time uses it.
type clientConn struct {
	net.Conn
	alive func() bool
	cut   func()
	limit io.LimitedReader
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time // the time at which the connection was established or last used
}

// Send sends a request with a head, additional header fields and a body, and returns the response. The caller must read
// the response's body to its end or close it. If body is nil, only the head is sent. A request is never sent twice. The
// error wraps [ErrNeverSent] if certainly no byte of the body was sent. When ctx is done, the request and any read of
// the response are aborted.
func (w *Client) Send(ctx context.Context, head *Head, fields []Field, body []byte) (*http.Response, error) {
	return w.SendWhen(ctx, nil, head, fields, body)
}

// SendWhen is like [Client.Send], but as soon as there is a connection, it calls begin immediately before it sends the
// request. If begin returns an error, nothing is sent, and SendWhen returns an error that wraps begin's error. If the
// connection can no longer be used when begin returns, SendWhen calls begin again for another connection. If begin is
// nil, it is not called.
func (w *Client) SendWhen(ctx context.Context, begin func() error, head *Head, fields []Field, body []byte) (*http.Response, error) {
	size := len(body)
	for _, f := range fields {
		size += len(f.Value)
		if strings.ContainsAny(f.Value, "\r\n\x00") {
			return nil, neverSentError{fmt.Errorf("the header %s contains a line break or NUL", f.Name)}
		}
	}
	if w.addr == "" || size > MaxRequest {
		return w.sendWithTransport(head.request(ctx, fields, body), begin)
	}
	if ctx.Err() != nil {
		return nil, neverSentError{context.Cause(ctx)}
	}
	c, err := w.getConn(ctx, begin)
	if err != nil {
		return nil, neverSentError{err}
	}
	stop := context.AfterFunc(ctx, c.cut)
	resp, err := c.exchange(head, fields, body)
	if err != nil {
		stop()
		return nil, errors.Join(reason(ctx, err), c.Close())
	}
	answer := &responseBody{inner: resp.Body, ctx: ctx, client: w, conn: c, stop: stop, closes: resp.Close}
	if resp.Body == http.NoBody {
		answer.finish(true)
	}
	resp.Body = answer
	return resp, nil
}

// sendWithTransport sends a request with the net/http transport. The request has no GetBody function, so net/http never
// sends a POST request twice.
func (w *Client) sendWithTransport(req *http.Request, begin func() error) (*http.Response, error) {
	var sent atomic.Bool
	gate := &gatedBody{ReadCloser: req.Body, begin: begin}
	switch {
	case begin != nil && req.Body != nil:
		req.Body = gate
	case begin != nil: // net/http reads no body, so begin is called before there is a connection
		if err := begin(); err != nil {
			return nil, neverSentError{err}
		}
	}
	resp, err := w.transport.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		// net/http calls WroteHeaders before it sends the body. After RoundTrip has returned, net/http cannot begin to
		// send the body.
		WroteHeaders: func() { sent.Store(true) },
	})))
	if refused := gate.refused.Load(); err != nil && refused != nil {
		return resp, neverSentError{*refused}
	}
	if err != nil && !sent.Load() {
		err = neverSentError{unreached(req.Context(), err)}
	}
	return resp, err
}

// gatedBody is the body of a request. It calls begin when the first byte of the body is read. net/http reads this byte
// as soon as it has a connection for the request. If begin returns an error, reading the body fails.
type gatedBody struct {
	io.ReadCloser
	begin   func() error
	begun   bool
	refused atomic.Pointer[error]
}

// Read implements io.Reader.
func (b *gatedBody) Read(p []byte) (int, error) {
	if refused := b.refused.Load(); refused != nil {
		return 0, *refused
	}
	if !b.begun {
		b.begun = true
		if err := b.begin(); err != nil {
			b.refused.Store(&err)
			return 0, err
		}
	}
	return b.ReadCloser.Read(p)
}

// unreached adds [ErrUnreached] to a connection error, unless the caller cancelled the request before its deadline.
func unreached(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) || ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrUnreached, err)
	}
	return err
}

func (c *clientConn) exchange(head *Head, fields []Field, body []byte) (*http.Response, error) {
	head.write(c.out, fields, body)
	if err := c.out.Flush(); err != nil { // Flush returns the first error of all writes
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

// getConn returns a connection that is still usable after begin has returned nil. Because begin may take a long time,
// during which the server may close the connection, getConn checks the connection again after begin has returned. If
// the connection is no longer usable, getConn tries another one and calls begin again.
func (w *Client) getConn(ctx context.Context, begin func() error) (*clientConn, error) {
	for dialed := 0; ; {
		c := w.popUsable()
		if c == nil {
			if dialed++; dialed > maxDialed {
				return nil, fmt.Errorf("%w: the server closed %d new connections before the request was sent: look for the reason in the server's log", ErrUnreached, maxDialed)
			}
			var err error
			if c, err = w.dial(ctx); err != nil {
				return nil, unreached(ctx, err)
			}
		}
		err := callBegin(ctx, begin)
		switch usable := c.isUsable(); {
		case usable && err == nil:
			return c, nil
		case usable:
			w.storeConn(c)
		default:
			_ = c.Close() // no request uses the connection
		}
		if err != nil {
			return nil, err
		}
	}
}

// isUsable reports whether a request may be sent on the connection. It returns false if the server has closed the
// connection or has sent unexpected bytes. It also returns false if the connection has been idle for so long that a
// network device between the gateway and the server may have dropped it.
func (c *clientConn) isUsable() bool { return time.Since(c.since) < idleTimeout && c.alive() }

// popUsable returns an idle connection that is usable, or nil if there is none. It closes the connections that are not
// usable.
func (w *Client) popUsable() *clientConn {
	for c := w.popIdle(); c != nil; c = w.popIdle() {
		if c.isUsable() {
			return c
		}
		_ = c.Close() // no request uses the connection
	}
	return nil
}

// callBegin calls begin, unless begin is nil. It returns begin's error, or the cause of ctx if ctx is done when begin
// returns.
func callBegin(ctx context.Context, begin func() error) error {
	if begin == nil {
		return nil
	}
	if err := begin(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (w *Client) dial(ctx context.Context) (*clientConn, error) {
	conn, err := w.transport.DialContext(ctx, "tcp", w.addr)
	if err != nil {
		return nil, err
	}
	c := &clientConn{Conn: conn, alive: watch(conn), limit: io.LimitedReader{R: conn}, out: bufio.NewWriterSize(conn, connBuffer), since: time.Now()}
	c.cut = func() { _ = c.SetDeadline(time.Unix(1, 0)) }
	c.in = bufio.NewReaderSize(&c.limit, connBuffer)
	return c, nil
}

func (w *Client) popIdle() *clientConn {
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

// putConn stores a connection for reuse after a request has used it.
func (w *Client) putConn(c *clientConn) {
	c.since = time.Now()
	w.storeConn(c)
}

// storeConn stores a connection for the next request. storeConn closes the connection that has been idle for longest if
// there are too many idle connections, or if that connection has been idle for too long.
func (w *Client) storeConn(c *clientConn) {
	w.mu.Lock()
	i := len(w.idle)
	for i > 0 && w.idle[i-1].since.After(c.since) {
		i--
	}
	w.idle = slices.Insert(w.idle, i, c)
	var old *clientConn
	if len(w.idle) > maxIdle || time.Since(w.idle[0].since) > idleTimeout {
		old, w.idle = w.idle[0], w.idle[1:]
	}
	w.mu.Unlock()
	if old != nil {
		_ = old.Close() // no request uses the connection
	}
}

// CloseIdleConnections closes the unused connections. http.Client finds this method by its name.
func (w *Client) CloseIdleConnections() {
	w.transport.CloseIdleConnections()
	for c := w.popIdle(); c != nil; c = w.popIdle() {
		_ = c.Close() // no request uses the connection
	}
}

// responseBody is the body of a response. When the body has been read to its end, the connection can be reused. If the
// body is closed earlier, the connection is closed.
type responseBody struct {
	inner  io.Reader
	ctx    context.Context //nolint:containedctx // the error of a read is the cause of the request's context
	client *Client
	conn   *clientConn
	// stop detaches the connection from ctx, so that reads are no longer aborted when ctx is done. It returns false if
	// ctx is already done.
	stop func() bool
	// closes is true if the server will close the connection after the response.
	closes bool
	ended  atomic.Bool // Close may be called during a Read
}

// Read implements io.Reader.
func (b *responseBody) Read(p []byte) (int, error) {
	if b.ended.Load() {
		return 0, io.EOF
	}
	n, err := b.inner.Read(p)
	if err == nil {
		return n, nil
	}
	b.finish(errors.Is(err, io.EOF))
	if !errors.Is(err, io.EOF) {
		err = reason(b.ctx, err)
	}
	return n, err
}

// Ended reports whether the body was read to its end or was closed.
func (b *responseBody) Ended() bool { return b.ended.Load() }

// Close implements io.Closer.
func (b *responseBody) Close() error {
	b.finish(false)
	return nil
}

func (b *responseBody) finish(complete bool) {
	if !b.ended.CompareAndSwap(false, true) {
		return
	}
	if b.stop() && complete && !b.closes && b.conn.in.Buffered() == 0 {
		b.client.putConn(b.conn)
		return
	}
	_ = b.conn.Close() // the connection is not used again
}

// reason returns the reason why a connection failed. This is the cause of ctx if ctx is done. Otherwise it is err, or
// context.DeadlineExceeded if err means that the connection's deadline has passed.
func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
