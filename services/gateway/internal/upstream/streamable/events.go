package streamable

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// readEvents reads Server-Sent Events (HTML Standard, section 9.2.6) until the answer to req arrives, and returns the
// answer. It passes notifications and requests to their receivers. It drops answers to other requests, because these
// requests were not sent on this stream. If the stream ends before the answer and the last event had an id, readEvents
// resumes the stream after that event (MCP 2025-11-25, Transports, Resumability and Redelivery). clean returns the
// redactor for the next message. The redactor can change during the stream, because the access token or a cookie can
// change.
func readEvents(ctx context.Context, body io.ReadCloser, clean func() *redact.Redactor, req upstream.Request, to receivers) (*jsonrpc.Answer, error) {
	stream := eventReader{data: bodyreader.New(ctx, req.Room, upstream.MaxMessage)}
	stream.continueWith(body)
	if req.Method() == mcp.MethodListen { // the limits apply to each minute, because the stream of a subscription can last indefinitely
		stream.begun = time.Now()
	}
	for {
		data, err := stream.next()
		if errors.Is(err, errEnded) && stream.last != "" && to.resume != nil {
			if body, err = to.resume(stream.last, stream.wait); err == nil {
				defer closer(body)() // closing the bodies only at the end is acceptable, because there are few of them
				stream.continueWith(body)
				continue
			}
		}
		if errors.Is(err, errEnded) && stream.wait > 0 && stream.last == "" {
			return nil, fmt.Errorf("%w: %w", upstream.ErrStreamEnded, err)
		}
		if err != nil {
			return nil, err
		}
		stream.data.Settle()
		if len(data) == 0 {
			continue // a priming event, or another event without a message
		}
		message, err := bodyreader.ReadRepaired(ctx, data, clean(), req.Room, methodOf(req))
		if err != nil {
			return nil, fmt.Errorf("read an event: %w", upstream.AsAnswerError(err))
		}
		switch {
		case message.Kind == jsonrpc.Response && message.UnquoteID(req.ID()) && upstream.IsForged(message):
			return nil, upstream.ErrForged
		case message.Kind == jsonrpc.Response && jsonrpc.SameID(message.ID.Of(message.Raw), req.ID()):
			return message, nil
		case message.Error.Present() && string(message.ID.Of(message.Raw)) == "null":
			return nil, upstream.ErrNoID
		default:
			to.deliver(message, req.ProgressToken())
		}
	}
}

var errEnded = errors.New("the stream ended before the answer")

// receivers contains the functions that receive a server's messages. All except events and resume are required.
type receivers struct {
	// resume waits for the given duration and then continues the stream after the event with the given id. It is nil if
	// the stream can't be resumed.
	resume func(last string, wait time.Duration) (io.ReadCloser, error)
	// events receives the messages that belong to the current request. It is nil if the request has no receiver for them.
	events func([]byte)
	// reply responds to a request from the server that no client accepts.
	reply func(*jsonrpc.Answer)
	// changed is called when the server reports a change to its tool list.
	changed func()
}

// deliver passes a notification or request from the server to its receiver. token is the progress token of the current
// request.
func (to receivers) deliver(m *jsonrpc.Answer, token []byte) {
	switch {
	case m.Kind == jsonrpc.Request && (to.events == nil || m.Method == mcp.MethodPing):
		to.reply(m)
	case m.Kind == jsonrpc.Request:
		to.events(m.Raw)
	case m.Kind == jsonrpc.Notification:
		if m.Method == mcp.MethodToolsChanged {
			to.changed()
		}
		if to.events != nil && upstream.BelongsToRequest(m, token) {
			to.events(m.Raw)
		}
	}
}

// replyTimeout limits how long a server may take to accept the gateway's response to the server's request. It is short
// because the gateway does not read from the server while it sends the response.
const replyTimeout = 5 * time.Second

// reply responds to a request from the server that no client accepts. Before the session is open, it does nothing.
func (c *conn) reply(ctx context.Context, m *jsonrpc.Answer, state *negotiated) {
	if state.opening {
		return
	}
	own := upstream.Refused(m.ID.Of(m.Raw), mcp.CodeMethodUnknown, upstream.NoClientForRequest)
	if m.Method == mcp.MethodPing {
		own = upstream.Pong(m.ID.Of(m.Raw))
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if err := c.notify(ctx, own.Request("", nil), state); err != nil {
		c.server.log.DebugContext(ctx, "server's request not answered", "server", c.server.name, "error", upstream.ForLog(err))
	}
}

// eventBuffer is the size of the buffer for a stream, in bytes. The field name of every line must fit into the buffer.
const eventBuffer = 8 << 10

// eventReader reads the events of a stream one at a time. It stores only one copy of the current event's data.
type eventReader struct {
	in   *bufio.Reader
	data *bodyreader.Memory
	// all is the number of bytes read, and events is the number of events. If begun is not zero, it is the start of the
	// current minute, and all and events count only from this time.
	all, events int
	begun       time.Time
	// seen is the size of the current event, and lines is the number of its data lines. other is true if the type of the
	// event is neither "message" nor the type in wanted.
	seen, lines int
	other       bool
	// kind is the type of the current event, or "" for the default type. wanted is an additional event type for which the
	// data is read.
	kind, wanted string
	// id and retry are fields of the current event. If a value is too long, the field is empty. retry is also empty if its
	// value contains characters other than digits.
	id, retry string
	// hasID is true if the event has an id, even an empty one. cr is true if the last line ended with CR, because an LF
	// may follow. begins is true after the beginning of the stream was read.
	hasID, cr, begins bool
	// last is the id of the last event with an id. wait is the last retry time that the server has sent.
	last string
	wait time.Duration
}

// continueWith continues the stream with another body. It drops an incomplete event.
func (e *eventReader) continueWith(body io.ReadCloser) {
	e.data.Drop()
	e.cr, e.begins = false, false
	from := bodyreader.Pace(body, e.data.IsHeld, closer(body))
	if e.in == nil {
		e.in = bufio.NewReaderSize(from, eventBuffer)
		return
	}
	e.in.Reset(from)
}

// maxField is the maximum length, in bytes, of an event's id. The id is limited because a client sends it back in a
// header.
const maxField = 256

// maxRetry is the maximum number of digits in a retry time. Eight digits are enough for a day (86,400,000 ms).
const maxRetry = 8

// next reads one event and returns its data. The data is valid until the next call. For events of types other than
// "message", such as pings, the data is empty.
func (e *eventReader) next() ([]byte, error) {
	if !e.begun.IsZero() && time.Since(e.begun) >= time.Minute {
		e.begun, e.all, e.events = time.Now(), 0, 0
	}
	if e.events++; e.events > upstream.MaxEvents {
		return nil, fmt.Errorf("more than %d events came before the answer, or in a minute", upstream.MaxEvents)
	}
	e.data.Drop()
	e.seen, e.lines, e.other, e.kind, e.id, e.hasID, e.retry = 0, 0, false, "", "", false, ""
	for {
		blank, err := e.line()
		if err != nil {
			return nil, err
		}
		if !blank {
			continue
		}
		if e.hasID { // an empty id clears the previous one
			e.last = e.id
		}
		if ms, err := strconv.Atoi(e.retry); err == nil {
			e.wait = time.Duration(ms) * time.Millisecond
		}
		if e.other {
			return nil, nil
		}
		return e.data.Bytes(), nil
	}
}

// line reads a line and reports whether it is blank. At the end of the stream, it returns an error, because an event
// without a final blank line is incomplete.
func (e *eventReader) line() (blank bool, err error) {
	part, more, err := e.readPart()
	if err != nil {
		return false, err
	}
	if !more && len(part) == 0 {
		return true, nil
	}
	field, value, _ := bytes.Cut(part, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	isData := string(field) == "data"
	switch string(field) {
	case "data":
		err = e.dataLine(value)
	case "event":
		kind := string(value)
		e.kind, e.other = kind, kind != "" && kind != "message" && kind != e.wanted
	case "id":
		if text, ok := eventField(value); ok && !more {
			e.id, e.hasID = text, true
		}
	case "retry":
		text, ok := eventField(value)
		if ok && !more && text != "" && len(text) <= maxRetry && strings.Trim(text, "0123456789") == "" {
			e.retry = text
		}
	}
	for more && err == nil {
		if part, more, err = e.readPart(); isData && err == nil {
			err = e.data.Add(part)
		}
	}
	return false, err
}

// eventField returns the value of a field that is forwarded to a client. It returns false if the value is longer than
// maxField bytes or contains characters other than visible ASCII.
func eventField(value []byte) (string, bool) {
	if len(value) > maxField || !isSession(string(value)) {
		return "", false
	}
	return string(value), true
}

func (e *eventReader) dataLine(value []byte) error {
	if e.lines++; e.lines > 1 {
		if err := e.data.Add([]byte("\n")); err != nil {
			return err
		}
	}
	return e.data.Add(value)
}

// readPart reads a line without its end, which is CR LF, LF or CR (HTML Standard, section 9.2.5). If the line is longer
// than the buffer, readPart returns the buffered part and true. It does not wait for the byte after a CR.
func (e *eventReader) readPart() (part []byte, more bool, err error) {
	if err := e.skip(); err != nil {
		return nil, false, err
	}
	for n := 0; ; {
		part, _ = e.in.Peek(e.in.Buffered()) // no error is possible for buffered bytes
		if end := lineEnd(part[n:]); end >= 0 {
			e.cr = part[n+end] == '\r'
			return part[:n+end], false, e.discard(n + end + 1)
		}
		if n = len(part); n == e.in.Size() {
			return part, true, e.discard(n)
		}
		if _, err := e.in.Peek(n + 1); err != nil {
			return nil, false, streamEnd(err)
		}
	}
}

// skip skips a byte order mark at the beginning of the stream, and an LF that follows a CR.
func (e *eventReader) skip() error {
	next, err := e.in.Peek(1)
	if err != nil {
		return streamEnd(err)
	}
	if e.cr && next[0] == '\n' {
		err = e.discard(1)
	}
	if !e.begins && next[0] == jsonrpc.ByteOrderMark[0] {
		// If Peek fails, the line is shorter than a byte order mark.
		if mark, _ := e.in.Peek(len(jsonrpc.ByteOrderMark)); string(mark) == jsonrpc.ByteOrderMark {
			err = e.discard(len(mark))
		}
	}
	e.cr, e.begins = false, true
	return err
}

func lineEnd(text []byte) int {
	end := bytes.IndexByte(text, '\n')
	if end >= 0 {
		text = text[:end]
	}
	if cr := bytes.IndexByte(text, '\r'); cr >= 0 {
		return cr
	}
	return end
}

// discard skips bytes that Peek has returned. These bytes stay valid until the next read.
func (e *eventReader) discard(n int) error {
	_, _ = e.in.Discard(n) // never fails, because the bytes are buffered
	e.all, e.seen = e.all+n, e.seen+n
	switch {
	case e.all > upstream.MaxStream:
		return fmt.Errorf("more than %d bytes came before the answer, or in a minute", upstream.MaxStream)
	case e.seen > upstream.MaxMessage:
		return fmt.Errorf("an event is larger than %d bytes", upstream.MaxMessage)
	default:
		return nil
	}
}

// streamEnd returns [errEnded] for [io.EOF], and every other error unchanged.
func streamEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}
