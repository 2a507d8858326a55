package streamable

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// Every request of revision 2026-07-28 contains these headers, in addition to the header with the revision (MCP
// 2026-07-28, Transports, Request Headers).
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
)

// modern reports whether the negotiated revision is 2026-07-28, which has no sessions.
func (state *negotiated) modern() bool { return state.version == mcp.Modern }

// discover sends server/discover to determine whether a server supports revision 2026-07-28. This revision has no
// sessions, so later requests do not depend on the answer.
func (c *conn) discover(ctx context.Context, memory *limits.Memory) (*negotiated, upstream.Answer, error) {
	state, hello := &negotiated{version: mcp.Modern}, c.initialize
	hello.Room = memory
	resp, err := c.post(ctx, hello, state)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	defer closeBody(resp)
	message, err := c.answer(ctx, resp, hello, state, nil)
	answer := upstream.Answer{Message: message, Status: resp.StatusCode}
	switch {
	case err == nil && upstream.SpeaksModern(message):
		return state, answer, nil
	case answer.IsUnknownRequest(), err == nil && !message.Error.Present():
		return nil, answer, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, upstream.ErrRevision)
	case err == nil:
		return nil, answer, c.answerError(resp, errNotNow)
	default:
		return nil, answer, err
	}
}

// subscribe sends subscriptions/listen, whose answer is a stream without an end. The gateway ends the stream when the
// stream's sign-in ends.
func (c *conn) subscribe(ctx context.Context, req upstream.Request, state *negotiated, events func([]byte)) (upstream.Answer, error) {
	signedIn := state.signedIn
	if signedIn == nil {
		var err error
		if signedIn, err = c.server.connection(ctx); err != nil {
			return upstream.Answer{}, err
		}
	}
	held, release := signedIn.Hold(ctx)
	defer release()
	within := *state
	within.signedIn = signedIn
	answer, err := c.exchangeOnce(held, req, &within, events)
	if err != nil && ctx.Err() == nil && held.Err() != nil {
		err = fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.server.name, context.Cause(held))
	}
	return answer, err
}

// errNotNow means that an answer does not show whether the server supports revision 2026-07-28.
var errNotNow = errors.New("it did not answer which revisions it speaks")

// bodyHeaders returns the headers that repeat parts of a request's body.
func bodyHeaders(req upstream.Request) []httpclient.Field {
	out := []httpclient.Field{{Name: headerMethod, Value: req.Method()}}
	if name, is := mcp.NameHeader(req.Method(), req.Message.Name, req.Message.URI, req.Message.TaskID); is {
		out = append(out, httpclient.Field{Name: headerName, Value: mcp.EncodeHeader(name)})
	}
	for _, f := range req.Mirrored {
		out = append(out, httpclient.Field{Name: f.Name, Value: mcp.EncodeHeader(f.Value)})
	}
	return out
}
