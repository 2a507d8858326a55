package edge

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// relay passes to the client what a server sends before its answer, as far as it is for the client. It is safe for
// concurrent use.
type relay struct {
	x *exchange
	dispatch.Sink
	asks asks
	// gone ends when the client has gone, or given its request up.
	gone context.Context //nolint:containedctx // the client's own
	// wants is what a subscription is of; nil elsewhere.
	wants *upstream.Wanted
}

// newRelay returns the relay to the stream of the exchange. It is used by one handler at a time.
func (x *exchange) newRelay() *relay {
	x.relay.x, x.relay.Sink, x.relay.gone = x, x.sink, x.client
	return &x.relay
}

// Event passes a message on that a server sent before its answer.
func (o *relay) Event(raw []byte) { _ = o.pass(upstream.Event{Message: raw}) } // a client that has gone needs no events

// pass passes on what a server said, as far as it is for the client. The error means that the client can't get it.
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
		x.sess.Asked.TakeBack(m.RequestID.Of(m.Raw)) // the client hears of it from who asked it
	case o.wants != nil && !x.addressing.isSubscribed(m): // the client would take it for another server's
	case x.hears(m.Method) && concerns(m, o.wants) && x.hearsOf(m), x.carriesFrom(m):
		return o.sendEvent(event, clean)
	}
	return o.sendEvent(event, nil)
}

// said reads what a server said, in a turn of the caller's if it is large, and how it is to be sent on. It is nil if
// nothing was said.
func (x *exchange) said(raw []byte) (*gate.Answer, [][]byte, error) {
	if raw == nil {
		return nil, nil, nil
	}
	end, err := x.has.Answer.TurnFor(x.whole(x.client), len(raw))
	if err != nil {
		return nil, nil, err // the caller waits for it no longer, or has too much that waits
	}
	defer end()
	m, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err != nil {
		return nil, nil, nil // the upstream reader let it through, so this can't be; nothing is lost by caution
	}
	edits, err := x.renamed(m, m.Method, m.Clean(nil))
	var clean [][]byte
	if err == nil {
		clean, err = gate.Plan(raw, edits...)
	}
	if err != nil {
		x.deps.Log.ErrorContext(x.client, "event could not be cleaned", "error", err)
		return nil, nil, nil
	}
	return m, clean, nil
}

// hears reports whether a server's notification of the protocol's is for the client: progress and what begins
// a subscription are, and of the others those that policy does not deny, nor the method that they serve.
func (x *exchange) hears(notification string) bool {
	switch {
	case !x.addressing.passesOn(notification):
		return false
	case notification == mcp.MethodProgress, notification == mcp.MethodAcknowledged:
		return true
	}
	said, err := x.standing(x.whole(x.client))
	if err != nil || !slices.Contains(said.Methods, notification) {
		return false
	}
	switch method := mcp.Tells(notification); method {
	case "":
		return notification == mcp.MethodMessage
	case mcp.MethodToolsList:
		return true // every caller may list tools
	default:
		return slices.Contains(said.Methods, method)
	}
}

// sendMessage sends a message before the answer. The error means that the client can't get it.
func (o *relay) sendMessage(message ...[]byte) error { return o.sendEvent(upstream.Event{}, message) }

// sendEvent sends a message as this event. An event has a message, an id or a time to retry.
func (o *relay) sendEvent(event upstream.Event, message [][]byte) error {
	event = o.x.addressing.event(event)
	if session.IsAnswers(event.ID) { // which would be taken for one of the gateway's own
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

// Hold begins the stream, so that the client sees that it is held.
func (o *relay) Hold() { o.Open() }

// Progress tells a client that asks for progress that its call still waits for a person. Progress must rise, and what
// the server reports later begins again: so this stays far below.
func (o *relay) Progress(n int) {
	token := o.x.msg.Meta.ProgressToken
	if !token.Present() {
		return
	}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"message":"waiting for a person's approval"}}`,
		token.Of(o.x.msg.Raw), strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64))
	_ = o.sendMessage(message) // a client that has gone needs no answer
}

// keepAlive sends a comment now and then, until ctx ends. It ends the stream of a client that has gone, or whose token
// does not count any more.
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

// whole is a context that does not end with the client, if the client can come back for what is made in it.
func (x *exchange) whole(ctx context.Context) context.Context {
	if x.resumable == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// BeginAnswer implements [dispatch.Replayable].
func (x *exchange) BeginAnswer() *session.Answering {
	if x.resumable == nil {
		return nil
	}
	return x.resumable.Answers.Begin(x.server, string(reach.AppendCaller(nil, x.Principal, "")), x.remembered.Open(&x.has.Of))
}
