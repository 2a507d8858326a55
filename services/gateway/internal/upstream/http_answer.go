package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// Content types of requests and answers.
const (
	typeJSON   = "application/json"
	typeEvents = "text/event-stream"
)

const (
	// drainTimeout is how long a server may take to end a response whose answer is
	// there.
	drainTimeout = 50 * time.Millisecond
	// maxDrain is how much is read of what may be left of a response.
	maxDrain = 4 << 10
)

// answer reads the answer to req out of a response: one JSON message, or the
// messages of an event stream up to the answer.
func (c *httpConn) answer(ctx context.Context, resp *http.Response, req Request, events func([]byte)) (*gate.Answer, error) {
	message, err := c.read(ctx, resp, req, events)
	if err != nil {
		req.Room.Keep(0) // nobody looks at what has come
		return nil, c.unusable(resp, err)
	}
	return message, nil
}

func (c *httpConn) read(ctx context.Context, resp *http.Response, req Request, events func([]byte)) (*gate.Answer, error) {
	switch kind := contentType(resp); kind {
	case typeJSON:
		body, err := readBody(ctx, resp, req.Room)
		if err != nil {
			return nil, err
		}
		return readAnswer(ctx, body, c.server.clean, req)
	case typeEvents:
		return readEvents(ctx, resp.Body, c.server.clean, req, events)
	default:
		return nil, fmt.Errorf("the content type is %q", kind)
	}
}

// contentType returns a response's type without its parameters.
func contentType(resp *http.Response) string {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return kind
}

// unusable says what is known of a request whose answer can't be used. No status
// says that the server did not read it: a tool that fails may well answer 429 for
// what it calls itself.
func (c *httpConn) unusable(resp *http.Response, err error) error {
	what := ErrNoAnswer
	if errors.Is(err, context.DeadlineExceeded) {
		what = ErrTimeout
	}
	return fmt.Errorf("%w: %s answered %d: %w", what, c.server.name, resp.StatusCode, err)
}

// readMessage reads a message without the server's secrets. A large one is read in
// turns, for others wait for the processor meanwhile.
func readMessage(ctx context.Context, raw []byte, clean *scrubber, has *room.Holding) (*gate.Answer, error) {
	end, err := has.TurnFor(ctx, len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return gate.ReadAnswer(clean.answer(raw), gate.AnswerLimits())
}

// readAnswer reads a message that must be the answer to a request.
func readAnswer(ctx context.Context, raw []byte, clean *scrubber, req Request) (*gate.Answer, error) {
	message, err := readMessage(ctx, raw, clean, req.Room)
	switch {
	case err != nil:
		return nil, err
	case message.Kind != gate.Response:
		return nil, errors.New("the message is no response")
	case !gate.SameID(message.ID.Of(message.Raw), req.ID()):
		return nil, errors.New("the response has another id")
	case forged(message):
		return nil, errForged
	default:
		return message, nil
	}
}

// versionOf returns the protocol revision in an answer to initialize as it is
// written; empty where it names none.
func versionOf(a *gate.Answer) string {
	raw := a.ProtocolVersion.Of(a.Raw)
	if len(raw) < 2 || raw[0] != '"' {
		return ""
	}
	return string(raw[1 : len(raw)-1])
}

// readBody reads a body of at most MaxMessage bytes.
func readBody(ctx context.Context, resp *http.Response, has *room.Holding) ([]byte, error) {
	most, sized := MaxMessage, resp.ContentLength >= 0
	if resp.ContentLength > MaxMessage {
		return nil, fmt.Errorf("the answer of %d bytes is larger than %d", resp.ContentLength, MaxMessage)
	}
	if sized {
		most = int(resp.ContentLength)
	}
	body := memory{ctx: ctx, room: has, most: most + 1, sized: sized} // by which one that is too long is known
	if resp.ContentLength > 0 {
		if err := body.reserve(min(body.most, room.Free)); err != nil {
			return nil, err
		}
	}
	if err := body.readFrom(newPace(resp.Body, body.isHeld, closer(resp.Body))); err != nil {
		return nil, err
	}
	if len(body.bytes) > MaxMessage {
		return nil, fmt.Errorf("the answer is larger than %d bytes", MaxMessage)
	}
	body.settle()
	return body.bytes, nil
}

// closer ends the reading of a body, whoever waits for it.
func closer(body io.Closer) func() { return func() { _ = body.Close() } }

// closeBody reads what little may be left, so that the connection can be used
// again, and closes. A server that leaves its response open loses the connection
// and holds nobody up.
func closeBody(resp *http.Response) {
	if resp.Body == http.NoBody {
		return
	}
	cut := time.AfterFunc(drainTimeout, closer(resp.Body))
	defer cut.Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
	_ = resp.Body.Close()
}
