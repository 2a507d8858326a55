package streamable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
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
func (c *conn) answer(ctx context.Context, resp *http.Response, req upstream.Request, events func([]byte)) (message *gate.Answer, err error) {
	defer func() {
		if err != nil {
			req.Room.Keep(0) // nobody looks at what has come
			message, err = nil, c.unusable(resp, err)
		}
	}()
	switch kind := contentType(resp); kind {
	case typeEvents:
		return readEvents(ctx, resp.Body, c.server.clean, req, events)
	case typeJSON:
	default:
		return nil, fmt.Errorf("the content type is %q", kind)
	}
	body, err := intake.Body(ctx, resp.Body, resp.ContentLength, upstream.MaxMessage, req.Room)
	if err != nil {
		return nil, err
	}
	message, err = intake.Message(ctx, body, c.server.clean, req.Room)
	switch {
	case err != nil:
		return nil, err
	case message.Kind != gate.Response:
		return nil, errors.New("the message is no response")
	case !gate.SameID(message.ID.Of(message.Raw), req.ID()):
		return nil, errors.New("the response has another id")
	case upstream.Forged(message):
		return nil, upstream.ErrForged
	default:
		return message, nil
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
func (c *conn) unusable(resp *http.Response, err error) error {
	what := upstream.ErrNoAnswer
	if errors.Is(err, context.DeadlineExceeded) {
		what = upstream.ErrTimeout
	}
	return fmt.Errorf("%w: %s answered %d: %w", what, c.server.name, resp.StatusCode, err)
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
