package dispatch

import (
	"context"
	"errors"
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

// KeepAliveInterval is the interval at which the gateway sends a comment on an idle stream. If sending a comment fails,
// the client has disconnected.
const KeepAliveInterval = 25 * time.Second

// Relay forwards the messages that a server sends before its answer, if the client may receive them. It is safe for
// concurrent use.
type Relay struct {
	exchange *Exchange
	Sink
	serverRequests serverRequests
	// requestCtx is cancelled when the client has disconnected or cancelled its request.
	requestCtx context.Context //nolint:containedctx // the client's context
	// Subscription describes the notifications to which the client has subscribed on this stream. It is nil if the stream
	// has no subscription.
	Subscription *upstream.Wanted
}

// NewRelay returns the relay for the exchange's stream. An exchange has only one relay, so two handlers must not use it
// at the same time. The caller must call [Relay.Settle] when it has stopped forwarding messages from the server.
func (x *Exchange) NewRelay() *Relay {
	x.relay.exchange, x.relay.Sink, x.relay.requestCtx = x, x.Sink, x.ClientCtx
	return &x.relay
}

// Event forwards a message that a server has sent before its answer.
func (o *Relay) Event(raw []byte) { _ = o.Deliver(upstream.Event{Message: raw}) } // the error is ignored, because the client may have disconnected

// Deliver forwards an event from a server if the client may receive it. It returns an error if the event could not be
// sent to the client.
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
		x.Session.ClientRequests.CancelRequest(m.RequestID.Of(m.Raw)) // the goroutine of the request notifies the client
	// A message that belongs to another subscription is dropped. Otherwise, the client would assign the message to this
	// stream's subscription.
	case o.Subscription != nil && !x.Addressing.IsSubscribed(m):
	case isSubscribedTo(m, o.Subscription) && x.mayReceive(m), x.allowsVendorNotification(m):
		return o.sendEvent(event, clean)
	}
	return o.sendEvent(event, nil)
}

// parseMessage parses a message from a server. It returns the message and the bytes to forward. Both are nil if raw
// contains no message. For a large message, parsing and replacing names each need one of the caller's time slices for
// processing. The first time slice ends before the second begins, because a goroutine must not hold two.
func (x *Exchange) parseMessage(raw []byte) (*jsonrpc.Answer, [][]byte, error) {
	if raw == nil {
		return nil, nil, nil
	}
	m, err := x.readServerMessage(raw)
	if err != nil { // always ErrUnread, because package upstream has already parsed the message
		return nil, nil, err
	}
	edits, err := x.addNameEdits(m, m.Method, m.Clean(nil))
	if errors.Is(err, ErrUnread) {
		return nil, nil, err
	}
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

// readServerMessage parses a message from a server, in one of the caller's time slices for processing. It returns
// [ErrUnread] if the caller has disconnected, or if too many messages for the caller wait for a time slice.
func (x *Exchange) readServerMessage(raw []byte) (*jsonrpc.Answer, error) {
	end, err := x.Slot.Answer.TimesliceFor(x.Uncancelled(x.ClientCtx), len(raw))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnread, err)
	}
	defer end()
	return jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
}

// mayReceive reports whether the client may receive a notification that MCP defines. Progress notifications and the
// acknowledgement of a subscription are always allowed. Other notifications are allowed if the policy denies neither
// the notification nor the method to which it refers. The notification that a resource has changed also requires
// permission for this resource. If the decision expires before mayReceive returns, a notification with contents is
// dropped, because an operator may have stopped the caller in the meantime.
func (x *Exchange) mayReceive(m *jsonrpc.Answer) bool {
	switch {
	case !x.Addressing.Forwards(m.Method):
		return false
	case m.Method == mcp.MethodProgress, m.Method == mcp.MethodAcknowledged:
		return true
	}
	validity := x.Deps.Pipeline.NewValidity()
	if !x.allowsNotification(m.Method) {
		return false
	}
	switch m.Method {
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		return true
	case mcp.MethodResourceUpdated:
		return x.mayReceiveUpdate(m) && !validity.HasEnded()
	default:
		return !validity.HasEnded()
	}
}

// allowsNotification reports whether the policy denies neither a notification nor the method to which it refers.
func (x *Exchange) allowsNotification(notification string) bool {
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

// SendMessage sends a message to the client before the answer. It returns an error if the message could not be sent.
func (o *Relay) SendMessage(message ...[]byte) error { return o.sendEvent(upstream.Event{}, message) }

// sendEvent sends a message with the id and the retry time of an event. If all three are empty, it sends nothing.
func (o *Relay) sendEvent(event upstream.Event, message [][]byte) error {
	event = o.exchange.Addressing.Event(event)
	if session.IsReplayID(event.ID) { // the gateway would treat this id as one of its own
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

// Hold opens the stream, which shows the client that its request is held.
func (o *Relay) Hold() { o.Open() }

// Progress sends a progress notification for a call that waits for an approval, if the client has requested progress.
// The reported value is n/1e6. It is small because progress must increase, and the server will report larger values
// later (MCP, Progress).
func (o *Relay) Progress(n int) {
	token := o.exchange.Message.Meta.ProgressToken
	if !token.Present() {
		return
	}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"message":"waiting for a person's approval"}}`,
		token.Of(o.exchange.Message.Raw), strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64))
	_ = o.SendMessage(message) // the error is ignored, because the client may have disconnected
}

// KeepOpen sends a comment every [KeepAliveInterval] until ctx is done. It calls closeStream if the client has
// disconnected or the client's token was revoked.
func (o *Relay) KeepOpen(ctx context.Context, closeStream context.CancelFunc) {
	tick := time.NewTicker(KeepAliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if o.exchange.Revoked(ctx) || o.KeepAlive() != nil {
				closeStream()
				return
			}
		}
	}
}

// Uncancelled returns ctx if the client can't resume the stream. Otherwise, it returns a context that is not cancelled
// when the client disconnects.
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

// isSubscribedTo reports whether a notification belongs to a subscription. For a notification about a list, the client
// must have subscribed to the list. For a notification about a resource, the client must have subscribed to the
// resource or to a URI that is a parent of the resource's URI.
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
