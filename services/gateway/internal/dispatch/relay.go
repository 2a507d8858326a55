package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// KeepAliveInterval is how often a silent stream gets a comment, so that the gateway notices a client that has
// disconnected.
const KeepAliveInterval = 25 * time.Second

// Relay forwards what a server sends before its answer to the client, as far as the client may get it. It is safe for
// concurrent use.
type Relay struct {
	exchange *Exchange
	Sink
	serverRequests serverRequests
	// requestCtx ends when the client has disconnected or cancelled its request.
	requestCtx context.Context //nolint:containedctx // the client's own
	// Subscription is what the client has subscribed to on this stream; nil if the stream has no subscription.
	Subscription *upstream.Wanted
}

// NewRelay returns the relay to the stream of the exchange. The exchange has one relay, which one handler uses at a
// time. The caller must call [Relay.Settle] when no more messages of the server are forwarded.
func (x *Exchange) NewRelay() *Relay {
	x.relay.exchange, x.relay.Sink, x.relay.requestCtx = x, x.Sink, x.ClientCtx
	return &x.relay
}

// Event forwards a message that a server sent before its answer.
func (o *Relay) Event(raw []byte) { _ = o.Deliver(upstream.Event{Message: raw}) } // the client may have disconnected

// Deliver forwards an event of a server, as far as the client may get it. An error means that the client can't get it.
func (o *Relay) Deliver(event upstream.Event) error {
	x := o.exchange
	m, clean, err := x.parseMessage(event.Message)
	switch {
	case err != nil:
		return err
	case m == nil:
	case m.Kind == jsonrpc.Request:
		o.handleServerRequest(m)
	case m.Method == mcp.MethodCancelled:
		x.Session.ClientRequests.CancelRequest(m.RequestID.Of(m.Raw)) // the request's own goroutine notifies the client
	case o.Subscription != nil && !x.Addressing.IsSubscribed(m): // the client would assign the message to another subscription
	case x.mayReceive(m.Method) && isSubscribedTo(m, o.Subscription) && x.mayReceiveUpdate(m), x.allowsVendorNotification(m):
		return o.sendEvent(event, clean)
	}
	return o.sendEvent(event, nil)
}

// parseMessage parses a message of a server, in a time slice of the caller if the message is large. It returns the
// message, and the bytes to forward. It returns nil if there is no message.
func (x *Exchange) parseMessage(raw []byte) (*jsonrpc.Answer, [][]byte, error) {
	if raw == nil {
		return nil, nil, nil
	}
	end, err := x.Slot.Answer.TimesliceFor(x.Uncancelled(x.ClientCtx), len(raw))
	if err != nil {
		return nil, nil, err // the caller has disconnected, or waits for too many messages
	}
	defer end()
	m, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if err != nil {
		return nil, nil, nil // impossible: the upstream reader has parsed it; dropping it loses nothing
	}
	edits, err := x.addNameEdits(m, m.Method, m.Clean(nil))
	var clean [][]byte
	if err == nil {
		clean, err = jsonrpc.PlanEdits(raw, edits...)
	}
	if err != nil {
		x.Deps.Log.ErrorContext(x.ClientCtx, "event could not be cleaned", "error", err)
		return nil, nil, nil
	}
	return m, clean, nil
}

// mayReceive reports whether the client may get a notification that MCP defines. Progress and the acknowledgement of a
// subscription always pass. Another notification
// passes if policy denies neither the notification nor the method whose results the notification concerns.
func (x *Exchange) mayReceive(notification string) bool {
	switch {
	case !x.Addressing.Forwards(notification):
		return false
	case notification == mcp.MethodProgress, notification == mcp.MethodAcknowledged:
		return true
	}
	access, err := x.Access(x.Uncancelled(x.ClientCtx))
	if err != nil || !access.Has(notification) {
		return false
	}
	switch method := mcp.MethodForNotification(notification); method {
	case "":
		return notification == mcp.MethodMessage
	case mcp.MethodToolsList:
		return true // every caller may list tools
	default:
		return access.Has(method)
	}
}

// SendMessage sends a message before the answer. An error means that the client can't get it.
func (o *Relay) SendMessage(message ...[]byte) error { return o.sendEvent(upstream.Event{}, message) }

// sendEvent sends a message as this event. It sends nothing if there is neither a message nor an id nor a retry time.
func (o *Relay) sendEvent(event upstream.Event, message [][]byte) error {
	event = o.exchange.Addressing.Event(event)
	if session.IsReplayID(event.ID) { // the gateway would treat it as its own id
		event.ID = ""
	}
	if message == nil && event.ID == "" && event.Retry == "" {
		return nil
	}
	if event.ID != "" && o.Accepts() {
		o.exchange.Session.Events.Add(event.ID)
	}
	return o.Send(event, message...)
}

// Hold begins the stream, so that the client sees that its request is held.
func (o *Relay) Hold() { o.Open() }

// Progress notifies a client that asked for progress that its call still waits for an approval. The value n/1e6 is far
// below the values that servers report later, because progress must rise (MCP, Progress).
func (o *Relay) Progress(n int) {
	token := o.exchange.Message.Meta.ProgressToken
	if !token.Present() {
		return
	}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"message":"waiting for a person's approval"}}`,
		token.Of(o.exchange.Message.Raw), strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64))
	_ = o.SendMessage(message) // the client may have disconnected
}

// KeepOpen sends a comment every [KeepAliveInterval] until ctx ends. It calls end if the client has disconnected or its
// token was revoked.
func (o *Relay) KeepOpen(ctx context.Context, end context.CancelFunc) {
	tick := time.NewTicker(KeepAliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if o.exchange.Revoked() || o.KeepAlive() != nil {
				end()
				return
			}
		}
	}
}

// Uncancelled returns ctx or, if the client can continue the stream later, a context that does not end when the client
// disconnects.
func (x *Exchange) Uncancelled(ctx context.Context) context.Context {
	if x.Resumable == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// BeginAnswer implements [Replayable].
func (x *Exchange) BeginAnswer() *session.ReplayStream {
	if x.Resumable == nil {
		return nil
	}
	return x.Resumable.Replay.Begin(x.ServerName, string(visibility.AppendCaller(nil, x.Principal, "")), x.Deps.Remembered.Open(&x.Slot.Owner))
}

// isSubscribedTo reports whether a notification is part of a subscription: it concerns a list, a resource of the
// subscription, or a resource whose URI continues the URI of that resource.
func isSubscribedTo(m *jsonrpc.Answer, wants *upstream.Wanted) bool {
	if wants == nil {
		return true
	}
	switch m.Method {
	case mcp.MethodToolsChanged:
		return wants.Tools
	case mcp.MethodPromptsChanged:
		return wants.Prompts
	case mcp.MethodResourcesChanged:
		return wants.Resources
	case mcp.MethodResourceUpdated:
	default:
		return true
	}
	var about struct {
		URI string `json:"uri"`
	}
	if err := json.Unmarshal(m.Params.Of(m.Raw), &about); err != nil {
		return false
	}
	return slices.ContainsFunc(wants.URIs, func(uri string) bool {
		below, is := strings.CutPrefix(about.URI, uri)
		return is && (below == "" || strings.HasSuffix(uri, "/") || strings.ContainsAny(below[:1], "/?#"))
	})
}
