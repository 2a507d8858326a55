package streamable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// openTimeout limits how long a server may take to respond to a request for a stream.
const openTimeout = 30 * time.Second

// Listen implements upstream.Conn. It opens the stream of a session (MCP 2025-11-25, Transports, Listening for Messages
// from the Server). The limits [upstream.MaxEvents] and [upstream.MaxStream] apply to each minute of the stream.
func (c *conn) Listen(ctx context.Context, to upstream.Listener) error {
	state := c.state.Load()
	if state.lost {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoStream, c.server.name, state.lossError())
	}
	if state.closed {
		return fmt.Errorf("%w: %s: %w", upstream.ErrNoStream, c.server.name, upstream.ErrClosed)
	}
	if state.modern() { // in this revision, all notifications belong to a request
		return fmt.Errorf("%w: %s", upstream.ErrNoStream, c.server.name)
	}
	held, release := state.signedIn.Hold(ctx)
	defer release()
	err := c.listen(held, to, state)
	if err != nil && ctx.Err() == nil && held.Err() != nil {
		err = fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, context.Cause(held))
	}
	return err
}

func (c *conn) listen(ctx context.Context, to upstream.Listener, state *negotiated) error {
	body, err := c.stream(ctx, state, to.After)
	if errors.Is(err, errForgotten) { // the events of the lost session can't be resumed
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
	stream := eventReader{data: bodyreader.New(ctx, to.Room, upstream.MaxMessage), begun: time.Now()}
	stream.continueWith(body)
	for {
		data, err := stream.next()
		if err != nil {
			return fmt.Errorf("listen to %s: %w", c.server.name, err)
		}
		stream.data.Settle()
		if err := c.handleEvent(ctx, to, data, &stream, state); err != nil {
			return err
		}
	}
}

// stream opens a session's stream. If after is not empty, it resumes the stream after the event with this id.
// Otherwise, the stream begins with new events.
func (c *conn) stream(ctx context.Context, state *negotiated, after string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(openTimeout, cancel)
	resp, err := c.server.send(ctx, state.signedIn, false, nil, c.server.get, append(c.fields(nil, state, upstream.Request{}), httpclient.Field{Name: headerLast, Value: after}), nil) //nolint:bodyclose // streamBody closes it
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open the stream of %s: %w", c.server.name, err)
	}
	state.cookies.store(resp.Header)
	body := streamBody{resp.Body, cancel}
	if resp.StatusCode == http.StatusOK && contentType(resp) == typeEvents && late.Stop() {
		return body, nil
	}
	err = fmt.Errorf("%w: %s answered %d", c.noStream(resp.StatusCode), c.server.name, resp.StatusCode)
	if cause := c.server.refusalCause(resp, err); cause != nil {
		err = cause
	}
	return nil, errors.Join(err, body.Close())
}

// noStream classifies the response status of a server that opens no stream. A server without a stream must respond with
// status 405, but not all servers do. Therefore, every status means that there is no stream, except for temporary
// errors and for statuses that reject the caller. If the server has already opened a stream for the session, status 404
// means that the session is lost. Otherwise, the server might not support GET.
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

// streamBody is a body whose Close also ends its request.
type streamBody struct {
	io.ReadCloser

	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b streamBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// minWait and maxWait limit the delay before a stream is resumed. The server can set this delay. minRetry is the
// minimum retry time that is forwarded to clients.
const (
	minWait  = 100 * time.Millisecond
	maxWait  = 30 * time.Second
	minRetry = 500 * time.Millisecond
)

// resume continues a stream that has ended, after the delay that the server has requested.
func (c *conn) resume(ctx context.Context, state *negotiated, last string, wait time.Duration) (io.ReadCloser, error) {
	later := time.NewTimer(max(minWait, min(wait, maxWait)))
	defer later.Stop()
	select {
	case <-later.C:
		return c.stream(ctx, state, last)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *conn) handleEvent(ctx context.Context, to upstream.Listener, data []byte, stream *eventReader, state *negotiated) error {
	event := upstream.Event{ID: stream.id, Retry: stream.retry}
	if event.Retry != "" && stream.wait < minRetry { // with a shorter time, clients would reconnect too often
		event.Retry = strconv.FormatInt(minRetry.Milliseconds(), 10)
	}
	// An event id that contains a secret is not forwarded.
	if c.server.secrets.Load().clean.Log(event.ID) != event.ID || state.cookies.containsValue(event.ID) {
		event.ID = ""
	}
	if len(data) > 0 {
		m, err := bodyreader.ReadMessage(ctx, data, c.scrubberFor(state), to.Room)
		if err != nil {
			return fmt.Errorf("read an event of %s: %w", c.server.name, err)
		}
		receivers{
			events:  func(message []byte) { event.Message = message },
			reply:   func(m *jsonrpc.Answer) { c.reply(ctx, m, state) },
			changed: c.server.Notify,
		}.deliver(m, nil)
	}
	if event.ID == "" && event.Retry == "" && event.Message == nil {
		return nil
	}
	if err := to.Event(event); err != nil {
		return errors.Join(errUnheard, err)
	}
	return nil
}

// errUnheard means that the client of a listener does not receive the stream's messages any more.
var errUnheard = errors.New("the stream has no listener")
