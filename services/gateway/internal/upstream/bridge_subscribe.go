package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

const (
	// minReopenDelay is the delay before the bridge reopens a stream that has ended. Each time the stream ends without an
	// event, the delay doubles, up to maxReopenDelay.
	minReopenDelay = time.Second
	maxReopenDelay = time.Minute
	// maxQueued is the maximum number of queued notifications for one client. maxNotice is the maximum size, in bytes, of
	// a notification that is forwarded.
	maxQueued = 64
	maxNotice = 64 << 10
)

type listener struct {
	id     jsontext.Value
	filter notifications
	// granted contains the resources for which the server sends updates. The bridge's lock guards it.
	granted []string

	// queue contains the notifications for the client. A separate goroutine sends them, so that a slow client does not
	// delay other clients. full is closed when the queue is full.
	queue chan []byte
	full  chan struct{}
	once  sync.Once
}

// notifications contains the kinds of notifications that a subscription includes (MCP 2026-07-28, Subscriptions).
type notifications struct {
	Tools     bool     `json:"toolsListChanged,omitzero"`
	Prompts   bool     `json:"promptsListChanged,omitzero"`
	Resources bool     `json:"resourcesListChanged,omitzero"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

// wants reports whether the subscription includes notifications with this method.
func (n notifications) wants(method string) bool {
	switch method {
	case mcp.MethodToolsChanged:
		return n.Tools
	case mcp.MethodPromptsChanged:
		return n.Prompts
	case mcp.MethodResourcesChanged:
		return n.Resources
	case mcp.MethodResourceUpdated:
		return len(n.URIs) > 0 // the receiver of the notification checks which resource has changed
	default:
		return false
	}
}

func isSubscribable(method string) bool {
	return notifications{Tools: true, Prompts: true, Resources: true, URIs: []string{""}}.wants(method)
}

// subscribe answers subscriptions/listen. It sends notifications from the session's stream until ctx is done.
func (b *stateless) subscribe(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	var params struct {
		Notifications notifications `json:"notifications"`
	}
	m := req.Message
	if err := json.Unmarshal(m.Params.Of(m.Raw), &params); err != nil || events == nil {
		return errorAnswer(req, mcp.CodeInvalidParams, "The params of the subscription are invalid.")
	}
	l := &listener{id: req.ID(), filter: params.Notifications, queue: make(chan []byte, maxQueued), full: make(chan struct{})}
	// The listener is added before it subscribes. Otherwise, removing another listener could unsubscribe from the same
	// resources.
	b.addListener(l, req.Room)
	defer b.removeListener(l)
	within, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	granted := l.filter
	granted.URIs = slices.DeleteFunc(slices.Clone(granted.URIs), func(uri string) bool { return b.subscribeResource(within, mcp.MethodSubscribe, uri, req.Room) != nil })
	b.mu.Lock()
	l.granted = granted.URIs
	b.mu.Unlock()
	encoded, err := json.Marshal(granted)
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	events(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":{"_meta":{"%s":%s},"notifications":%s}}`, mcp.MethodAcknowledged, mcp.MetaSubscription, l.id, encoded))
	for {
		select {
		case raw := <-l.queue:
			events(raw)
		case <-l.full:
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, errSlow)
		case <-b.lost: // a subscription to a session that can't be used any more would never end
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, b.lostErr)
		case <-ctx.Done():
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, context.Cause(ctx))
		}
	}
}

var errSlow = errors.New("the client reads too slowly")

// subscribeResource subscribes to a resource of the server, or unsubscribes from it. method is resources/subscribe or
// resources/unsubscribe. While another client is subscribed to the resource, subscribeResource does not unsubscribe.
func (b *stateless) subscribeResource(ctx context.Context, method, uri string, memory *limits.Memory) error {
	params, err := json.Marshal(map[string]string{"uri": uri})
	if err != nil {
		return err
	}
	select {
	case b.resourceLock <- struct{}{}:
		defer func() { <-b.resourceLock }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if method == mcp.MethodUnsubscribe && b.wanted(uri) { // another client has subscribed in the meantime
		return nil
	}
	room := memory.Sibling()
	defer room.Close()
	answer, err := b.Conn.Request(ctx, gatewayRequest(method, string(params)).inTrace(ctx, room), nil)
	if err == nil && answer.Message.Error.Present() {
		err = errors.New("the server refused the subscription")
	}
	return err
}

func (b *stateless) wanted(uri string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l := range b.listeners {
		if slices.Contains(l.filter.URIs, uri) {
			return true
		}
	}
	return false
}

// subscribeTimeout is the timeout for subscribing to all resources of one listener. unsubscribeTimeout is the timeout
// for unsubscribing from them.
const (
	subscribeTimeout   = 30 * time.Second
	unsubscribeTimeout = 5 * time.Second
)

// addListener adds a subscription. If this is the only subscription, it also opens the stream.
func (b *stateless) addListener(l *listener, memory *limits.Memory) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listeners[l] = struct{}{}
	if b.endStream == nil && !b.closed {
		ctx, cancel := context.WithCancel(context.Background())
		b.endStream = cancel
		room := memory.Sibling()
		b.all.Go(func() { b.stream(ctx, room) })
	}
}

// removeListener removes a subscription. If no subscription is left, it also closes the stream.
func (b *stateless) removeListener(l *listener) {
	b.mu.Lock()
	delete(b.listeners, l)
	if len(b.listeners) == 0 && b.endStream != nil {
		b.endStream()
		b.endStream = nil
	}
	unwanted := l.granted
	if len(unwanted) > 0 && !b.closed {
		b.all.Go(func() { // in the background, because no client waits for it
			defer func() { _ = recover() }() // in this goroutine, net/http does not recover panics
			ctx, cancel := context.WithTimeout(context.Background(), unsubscribeTimeout)
			defer cancel()
			for _, uri := range unwanted {
				// The error is ignored. If the server continues to send updates of the resource, no client receives them.
				_ = b.subscribeResource(ctx, mcp.MethodUnsubscribe, uri, nil)
			}
		})
	}
	b.mu.Unlock()
}

// stream passes the server's messages to the subscriptions until ctx is done. If the server's stream ends earlier,
// stream opens it again.
func (b *stateless) stream(ctx context.Context, memory *limits.Memory) {
	defer memory.Close()
	defer func() {
		_ = recover() // in this goroutine, net/http does not recover panics
		b.mu.Lock()
		defer b.mu.Unlock()
		if ctx.Err() == nil { // the server has no stream, but might have one when the next subscription begins
			b.endStream = nil
		}
	}()
	for wait := minReopenDelay; ; wait = min(2*wait, maxReopenDelay) {
		err := b.Listen(ctx, Listener{Room: memory, Opened: func() {}, Event: func(e Event) error {
			wait = minReopenDelay
			b.dispatch(ctx, e.Message)
			return nil
		}})
		switch {
		case errors.Is(err, ErrSessionLost):
			b.lose(err)
			return
		case errors.Is(err, ErrNoStream):
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// lose ends all subscriptions, because the session is lost.
func (b *stateless) lose(why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.lost:
	default:
		b.lostErr = why
		close(b.lost)
	}
}

// dispatch passes a message to the subscriptions that include it.
func (b *stateless) dispatch(ctx context.Context, raw []byte) {
	m, err := jsonrpc.ReadAnswer(raw, jsonrpc.AnswerLimits())
	if raw == nil || err != nil {
		return
	}
	if m.Kind == jsonrpc.Request { // the request belongs to no call, so no client can receive it in an answer
		_ = b.Notify(ctx, Refused(m.ID.Of(raw), mcp.CodeMethodUnknown, NoClientForRequest).inTrace(ctx, nil))
		return
	}
	b.mu.Lock()
	var to []*listener
	for l := range b.listeners {
		if l.filter.wants(m.Method) {
			to = append(to, l)
		}
	}
	b.mu.Unlock()
	for _, l := range to {
		l.queueNotification(m)
	}
}

func (l *listener) queueNotification(m *jsonrpc.Answer) {
	params := make(map[string]jsontext.Value)
	meta := make(map[string]jsontext.Value)
	if m.Params.Present() && json.Unmarshal(m.Params.Of(m.Raw), &params) != nil || params["_meta"] != nil && json.Unmarshal(params["_meta"], &meta) != nil {
		return
	}
	meta[mcp.MetaSubscription] = l.id
	raw, err := json.Marshal(meta, json.Deterministic(true))
	if err == nil {
		params["_meta"] = raw
		raw, err = json.Marshal(params, json.Deterministic(true))
	}
	if err != nil || len(raw) > maxNotice {
		return
	}
	select {
	case l.queue <- fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"%s","params":%s}`, m.Method, raw):
	default:
		l.once.Do(func() { close(l.full) })
	}
}
