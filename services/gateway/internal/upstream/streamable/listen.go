package streamable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wire"
)

// openTimeout is how long a server may take to say whether it has a stream.
const openTimeout = 30 * time.Second

// Listen implements upstream.Conn: it opens the stream of a session (MCP 2025-11-25,
// Transports, Listening for Messages from the Server). In a minute no more may come on it than
// before the answer to one request.
func (c *conn) Listen(ctx context.Context, to upstream.Listener) error {
	state := c.state.Load()
	if state.closed {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoStream, c.server.name, upstream.ErrClosed)
	}
	if state.modern() { // what is said comes on the answer to a request there
		return fmt.Errorf("%w: %s", upstream.ErrNoStream, c.server.name)
	}
	body, err := c.stream(ctx, state, to.After)
	if errors.Is(err, errForgotten) { // and with it its events
		if state, err = c.reopen(ctx, state, to.Room); err == nil {
			body, err = c.stream(ctx, state, "")
		}
	}
	if err != nil {
		return err
	}
	defer closer(body)()
	c.listened.Store(true)
	to.Opened()
	stream := eventReader{data: intake.New(ctx, to.Room, upstream.MaxMessage), begun: time.Now()}
	stream.reads(body)
	for {
		data, err := stream.next()
		if err != nil {
			return fmt.Errorf("listen to %s: %w", c.server.name, err)
		}
		stream.data.Settle()
		if err := c.hear(ctx, to, data, &stream, state); err != nil {
			return err
		}
	}
}

// stream opens the stream of a session, behind the event with this id; empty for none.
func (c *conn) stream(ctx context.Context, state *agreed, after string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(openTimeout, cancel)
	resp, err := c.server.wire.Send(ctx, c.server.get, append(c.fields(nil, state, upstream.Request{}), wire.Field{Name: headerLast, Value: after}), nil) //nolint:bodyclose // streamBody closes it
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open the stream of %s: %w", c.server.name, err)
	}
	state.cookies.take(resp.Header)
	body := streamBody{resp.Body, cancel}
	if resp.StatusCode == http.StatusOK && contentType(resp) == typeEvents && late.Stop() {
		return body, nil
	}
	return nil, errors.Join(fmt.Errorf("%w: %s answered %d", c.noStream(resp.StatusCode), c.server.name, resp.StatusCode), body.Close())
}

// noStream is what a server means that gives no stream. Not all that have none say 405, as MCP
// wants it: what is not known to be for now, or for who asks, is for good. By 404 it has
// forgotten the session where it had a stream before; else it may know nothing of GET.
func (c *conn) noStream(status int) error {
	switch {
	case status == http.StatusNotFound && c.listened.Load():
		return errForgotten
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusRequestTimeout, status == http.StatusTooManyRequests,
		status >= http.StatusInternalServerError && status != http.StatusNotImplemented:
		return upstream.ErrNoAnswer
	default:
		return upstream.ErrNoStream
	}
}

// streamBody ends its request with it.
type streamBody struct {
	io.ReadCloser

	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b streamBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// leastWait and mostWait bound how long a server may have a stream gone on with later, and
// leastRetry how soon clients may be told to.
const (
	leastWait  = 100 * time.Millisecond
	mostWait   = 30 * time.Second
	leastRetry = 500 * time.Millisecond
)

// resume goes on with a stream that has ended, as its server wants it.
func (c *conn) resume(ctx context.Context, state *agreed, last string, wait time.Duration) (io.ReadCloser, error) {
	later := time.NewTimer(max(leastWait, min(wait, mostWait)))
	defer later.Stop()
	select {
	case <-later.C:
		return c.stream(ctx, state, last)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// hear takes one event.
func (c *conn) hear(ctx context.Context, to upstream.Listener, data []byte, stream *eventReader, state *agreed) error {
	event := upstream.Event{ID: stream.id, Retry: stream.retry}
	if event.Retry != "" && stream.wait < leastRetry { // clients would come again and again
		event.Retry = strconv.FormatInt(leastRetry.Milliseconds(), 10)
	}
	if c.server.clean.Log(event.ID) != event.ID || state.cookies.holds(event.ID) { // a secret, which is to reach no client
		event.ID = ""
	}
	if len(data) > 0 {
		m, err := intake.Message(ctx, data, c.cleanOf(state), to.Room)
		if err != nil {
			return fmt.Errorf("read an event of %s: %w", c.server.name, err)
		}
		takers{
			events:  func(message []byte) { event.Message = message },
			reply:   func(m *gate.Answer) { c.reply(ctx, m, state) },
			changed: c.server.Tell,
		}.take(m, nil)
	}
	if event.ID == "" && event.Retry == "" && event.Message == nil {
		return nil
	}
	if err := to.Event(event); err != nil {
		return errors.Join(errUnheard, err)
	}
	return nil
}

// errUnheard means that nobody hears a server any more.
var errUnheard = errors.New("nobody listens")
