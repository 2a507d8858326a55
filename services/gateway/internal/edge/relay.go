package edge

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// relay forwards what a server sends before its answer to the client, as far as the client may get it. It is safe for
// concurrent use.
type relay struct {
	x *core
	dispatch.Sink
	asks asks
	// gone ends when the client has disconnected or cancelled its request.
	gone context.Context //nolint:containedctx // the client's own
	// wants is the subscription of the stream; nil if there is none.
	wants *upstream.Wanted
}

// newRelay returns the relay to the stream of the exchange. It is used by one handler at a time.
func (x *core) newRelay() *relay {
	x.relay.x, x.relay.Sink, x.relay.gone = x, x.sink, x.client
	return &x.relay
}

// Event forwards a message that a server sent before its answer.
func (o *relay) Event(raw []byte) { _ = o.pass(upstream.Event{Message: raw}) } // the client may have disconnected

// pass forwards an event of a server, as far as the client may get it. An error means that the client can't get it.
func (o *relay) pass(event upstream.Event) error {
	x := o.x
	m, clean, err := x.said(event.Message)
	switch {
	case err != nil:
		return err
	case m == nil:
	case m.Kind == gate.Request:
		o.asked(m)
	case m.Method == mcp.MethodCancelled:
		x.sess.Asked.TakeBack(m.RequestID.Of(m.Raw)) // the request's own goroutine notifies the client
	case o.wants != nil && !x.addressing.isSubscribed(m): // the client would take it for another subscription's
	case x.hears(m.Method) && concerns(m, o.wants) && x.hearsOf(m), x.carriesFrom(m):
		return o.sendEvent(event, clean)
	}
	return o.sendEvent(event, nil)
}

// said parses a message of a server, in a time slice of the caller if the message is large, and returns the message as
// it is forwarded. It returns nil if there is no message.
func (x *core) said(raw []byte) (*gate.Answer, [][]byte, error) {
	if raw == nil {
		return nil, nil, nil
	}
	end, err := x.has.Answer.TurnFor(x.whole(x.client), len(raw))
	if err != nil {
		return nil, nil, err // the caller has disconnected, or waits for too many messages
	}
	defer end()
	m, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err != nil {
		return nil, nil, nil // impossible: the upstream reader has parsed it; dropping it loses nothing
	}
	edits, err := x.renamed(m, m.Method, m.Clean(nil))
	var clean [][]byte
	if err == nil {
		clean, err = gate.Plan(raw, edits...)
	}
	if err != nil {
		x.Deps.Log.ErrorContext(x.client, "event could not be cleaned", "error", err)
		return nil, nil, nil
	}
	return m, clean, nil
}

// hears reports whether the client may get a notification that MCP defines. Progress and the acknowledgement of a
// subscription always pass. Others pass if policy denies neither them nor the method whose results they concern.
func (x *core) hears(notification string) bool {
	switch {
	case !x.addressing.passesOn(notification):
		return false
	case notification == mcp.MethodProgress, notification == mcp.MethodAcknowledged:
		return true
	}
	access, err := x.lookupAccess(x.whole(x.client))
	if err != nil || !access.Has(notification) {
		return false
	}
	switch method := mcp.Tells(notification); method {
	case "":
		return notification == mcp.MethodMessage
	case mcp.MethodToolsList:
		return true // every caller may list tools
	default:
		return access.Has(method)
	}
}

// sendMessage sends a message before the answer. An error means that the client can't get it.
func (o *relay) sendMessage(message ...[]byte) error { return o.sendEvent(upstream.Event{}, message) }

// sendEvent sends a message as this event. It sends nothing if there is no message, id or retry time.
func (o *relay) sendEvent(event upstream.Event, message [][]byte) error {
	event = o.x.addressing.event(event)
	if session.IsAnswers(event.ID) { // it would be taken for an id of the gateway
		event.ID = ""
	}
	if message == nil && event.ID == "" && event.Retry == "" {
		return nil
	}
	if event.ID != "" && o.Accepts() {
		o.x.sess.Events.Give(event.ID)
	}
	return o.Send(event, message...)
}

// Hold begins the stream, so that the client sees that its request is held.
func (o *relay) Hold() { o.Open() }

// Progress notifies a client that asked for progress that its call still waits for an approval. The value n/1e6 is far
// below the server's progress, because progress must rise and the server begins later.
func (o *relay) Progress(n int) {
	token := o.x.msg.Meta.ProgressToken
	if !token.Present() {
		return
	}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"message":"waiting for a person's approval"}}`,
		token.Of(o.x.msg.Raw), strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64))
	_ = o.sendMessage(message) // the client may have disconnected
}

// keepAlive sends a comment every aliveEvery until ctx ends. It calls end if the client has disconnected or its token
// was revoked.
func (o *relay) keepAlive(ctx context.Context, end context.CancelFunc) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if o.x.Revoked() || o.KeepAlive() != nil {
				end()
				return
			}
		}
	}
}

// whole returns ctx or, if the client can continue the stream later, a context that does not end when the client
// disconnects.
func (x *core) whole(ctx context.Context) context.Context {
	if x.resumable == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// BeginAnswer implements [dispatch.Replayable].
func (x *core) BeginAnswer() *session.Answering {
	if x.resumable == nil {
		return nil
	}
	return x.resumable.Answers.Begin(x.server, string(visibility.AppendCaller(nil, x.Principal, "")), x.Deps.Remembered.Open(&x.has.Of))
}
