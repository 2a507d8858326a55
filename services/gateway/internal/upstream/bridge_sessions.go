package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxRounds is the maximum number of times that a server may send requests to the client before it answers one
	// request.
	maxRounds = 16
	// maxState is the maximum size of the state that a server sends and the gateway must return. maxResponses is the
	// maximum total size of the client's responses. Both are in bytes.
	maxState     = 64 << 10
	maxResponses = 4 << 20
	// maxSubscribed is the maximum number of resources to which a session may be subscribed.
	maxSubscribed = 100
)

// withSessions opens a session for a client with a stateless server (revision 2026-07-28). Each request to the server
// repeats the client's declarations from initialize. If the server's answer contains requests to the client, the client
// receives them as requests in its session. A subscription to the server provides the messages for the session's
// stream.
func (s *Server) withSessions(ctx context.Context, key principal.Key, first Request) (*Session, Answer, error) {
	client := new(Client)
	client.Name, client.Version = first.Message.Client()
	client.rawCapabilities = first.Message.Capabilities.Of(first.Message.Raw)
	under, answer, err := s.Open(ctx, key, Discover(client).OnBehalfOf(first.Person), first.Room)
	if err != nil {
		return nil, answer, err
	}
	greeting, err := Greeting(answer.Message, first.Message.Version, first.ID())
	if err != nil {
		return nil, Answer{}, errors.Join(fmt.Errorf("%w: its answer to server/discover can't be read: %w", ErrNoAnswer, err), under.Close(ctx))
	}
	under.conn = &sessions{Conn: under.conn, client: client, calls: make(map[*sent]struct{}), pending: make(map[string]chan *jsonrpc.Answer)}
	return under, Answer{Message: greeting, Status: answer.Status}, nil
}

// sessions is a connection that behaves as a session for the client, although the server is stateless. It is safe for
// concurrent use.
type sessions struct {
	Conn // a connection without sessions

	client *Client

	mu sync.Mutex
	// calls contains the requests in flight. pending contains channels for the responses to requests that were sent to
	// the client, by request id.
	calls   map[*sent]struct{}
	pending map[string]chan *jsonrpc.Answer
	// level is the minimum level of the log messages that the client has requested, as raw JSON. It is nil if the
	// client has not requested a level.
	level []byte
	// uris are the resources to which the session is subscribed. renewed is closed and replaced with a new channel when
	// the resources change.
	uris    []string
	renewed chan struct{}
}

// sent is a request in flight. key is derived from the request's id.
type sent struct {
	key    string
	cancel context.CancelCauseFunc
}

// Request implements [Conn]. If the server's answer contains requests to the client, Request forwards them to the
// client. It then repeats the original request with the client's responses.
func (b *sessions) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	if mcp.IsRemoved(req.Method()) {
		return b.applySetting(req)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call := &sent{key: jsonrpc.IDKey(req.ID()), cancel: cancel}
	b.mu.Lock()
	b.calls[call] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.calls, call)
	}()
	var more []byte
	for rounds := 0; ; rounds++ {
		leg := req
		var answer Answer
		var err error
		if leg.Message, err = req.Message.WithMeta(b.members(), more); err != nil {
			err = fmt.Errorf("%w: %w", ErrNeverSent, err)
		} else {
			answer, err = b.Conn.Request(ctx, leg, events)
		}
		if err != nil && rounds > 0 { // err describes only the last round trip, but the server has received earlier round trips
			return answer, sentBefore(err)
		}
		if err != nil || !needsInput(answer.Message) {
			return answer, err
		}
		if rounds == maxRounds {
			return errorAnswer(req, mcp.CodeInternal, "The server asks for input too often before it answers.")
		}
		more, err = b.askClient(ctx, answer.Message, events)
		if ctx.Err() != nil { // the client has left, and the effect on the server is unknown
			return Answer{}, sentBefore(context.Cause(ctx))
		}
		if err != nil {
			return errorAnswer(req, mcp.CodeInternal, "The server asked for input before it answers, and got none: "+err.Error()+".")
		}
		req.Room.Settle(0) // releases the memory of the server's requests
	}
}

// sentBefore wraps the error of a request in [ErrNoAnswer], because the server has already received an earlier round
// trip of the request. The result does not match [ErrNeverSent], even if the last round trip was never sent.
func sentBefore(err error) error {
	what := []error{ErrNoAnswer}
	if errors.Is(err, ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		what[0] = ErrTimeout
	}
	for _, reason := range []error{ErrCancelled, ErrClosed, ErrShutdown, ErrSessionLost, ErrSignedOut, limits.ErrMemory} {
		if errors.Is(err, reason) {
			what = append(what, reason)
		}
	}
	if cause := CauseOf(err); cause != nil {
		what = append(what, cause.withoutClass())
	}
	return fmt.Errorf("%w: %s", errors.Join(what...), err) //nolint:errorlint // the error must not match ErrNeverSent
}

// members returns the `_meta` members with the values that were negotiated for the session.
func (b *sessions) members() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.client.members()
	if b.level != nil {
		out = slices.Concat(out, []byte(`,"`+mcp.MetaLogLevel+`":`), b.level)
	}
	return out
}

// applySetting answers a request that changes a setting of the session, and stores the setting. Every later request or
// subscription to the stateless server contains the setting.
func (b *sessions) applySetting(req Request) (Answer, error) {
	m := req.Message
	b.mu.Lock()
	defer b.mu.Unlock()
	switch at := slices.Index(b.uris, m.URI); m.Method {
	case mcp.MethodSetLevel:
		var params struct {
			Level string `json:"level"`
		}
		if err := json.Unmarshal(m.Params.Of(m.Raw), &params); err != nil || !slices.Contains(mcp.LogLevels(), params.Level) {
			return errorAnswer(req, mcp.CodeInvalidParams, "The level is not one that MCP defines.")
		}
		b.level = []byte(strconv.Quote(params.Level))
	case mcp.MethodSubscribe:
		if at < 0 && len(b.uris) == maxSubscribed {
			return errorAnswer(req, mcp.CodeInvalidParams, "The session has too many subscriptions.")
		}
		if at < 0 {
			b.uris = append(b.uris, m.URI)
			b.restartSubscription()
		}
	case mcp.MethodUnsubscribe:
		if at >= 0 {
			b.uris = slices.Delete(b.uris, at, at+1)
			b.restartSubscription()
		}
	default:
		return errorAnswer(req, mcp.CodeMethodUnknown, "The server does not know this method.")
	}
	answer, err := jsonrpc.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, req.ID()), jsonrpc.AnswerLimits())
	return Answer{Message: answer}, err
}

// restartSubscription ends the current subscription. A new subscription is then opened. The caller must hold the lock.
func (b *sessions) restartSubscription() {
	if b.renewed != nil {
		close(b.renewed)
		b.renewed = nil
	}
}

// wants returns the notifications that the subscription must include, and a channel that is closed when this set
// changes.
func (b *sessions) wants() (Wanted, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.renewed == nil {
		b.renewed = make(chan struct{})
	}
	return Wanted{Tools: true, Prompts: true, Resources: true, URIs: slices.Clone(b.uris)}, b.renewed
}

// errorAnswer returns an error that the gateway has written as the answer to a request.
func errorAnswer(req Request, code int, text string) (Answer, error) {
	m, err := jsonrpc.ReadAnswer(Refused(req.ID(), code, text).message.Raw, jsonrpc.AnswerLimits())
	return Answer{Message: m}, err
}

// needsInput reports whether an answer contains requests to the client instead of a result (MCP 2026-07-28, Multi
// Round-Trip Requests).
func needsInput(a *jsonrpc.Answer) bool {
	return a.Result.Present() && (a.InputRequests.Present() || string(a.ResultType.Of(a.Raw)) == `"`+mcp.ResultInputRequired+`"`)
}

// These errors end a request if the server needs input that the client can't or doesn't provide.
var (
	errNoClient   = errors.New("no client accepts requests of servers here")
	errUnanswered = errors.New("the client did not answer, or policy does not allow the request")
	errUnreadable = errors.New("its request can't be read")
)

// askClient sends the requests in an answer to the client and waits for the client's responses. It returns the params
// for repeating the original request.
func (b *sessions) askClient(ctx context.Context, answer *jsonrpc.Answer, events func([]byte)) ([]byte, error) {
	var asks struct {
		Inputs map[string]struct {
			Method jsontext.Value `json:"method"`
			Params jsontext.Value `json:"params"`
		} `json:"inputRequests"`
		State jsontext.Value `json:"requestState"`
	}
	if err := json.Unmarshal(answer.Result.Of(answer.Raw), &asks); err != nil || len(asks.State) > maxState {
		return nil, errUnreadable
	}
	asks.State = asks.State.Clone() // the buffer is reused for the next answer
	if events == nil && len(asks.Inputs) > 0 {
		return nil, errNoClient
	}
	answers := make(map[string]chan *jsonrpc.Answer, len(asks.Inputs))
	for name, in := range asks.Inputs {
		if in.Method.Kind() != '"' {
			return nil, errUnreadable
		}
		id := newRequestID()
		responses, done := b.registerRequest(id)
		defer done()
		answers[name] = responses
		request := slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"method":`), in.Method)
		if in.Params != nil {
			request = slices.Concat(request, []byte(`,"params":`), in.Params)
		}
		events(append(request, '}'))
	}
	params := []byte(`"inputResponses":{`)
	for i, name := range slices.Sorted(maps.Keys(answers)) {
		select {
		case m := <-answers[name]:
			if !m.Result.Present() {
				return nil, errUnanswered
			}
			key, err := jsontext.AppendQuote(nil, name)
			if err != nil { // the value was read from JSON, so this cannot fail
				return nil, errUnreadable
			}
			if i > 0 {
				params = append(params, ',')
			}
			if len(params)+len(m.Raw) > maxResponses {
				return nil, errUnanswered
			}
			params = slices.Concat(params, key, []byte(":"), m.Result.Of(m.Raw)) // the bytes from the client are unchanged
		case <-ctx.Done():
			return nil, errUnanswered
		}
	}
	params = append(params, '}')
	if asks.State != nil {
		params = slices.Concat(params, []byte(`,"requestState":`), asks.State)
	}
	return params, nil
}

// registerRequest registers a request to the client. id is the raw id of the request. The channel receives the client's
// response until done is called.
func (b *sessions) registerRequest(id []byte) (responses chan *jsonrpc.Answer, done func()) {
	key := jsonrpc.IDKey(id)
	responses = make(chan *jsonrpc.Answer, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending[key] = responses
	return responses, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.pending, key)
	}
}

// Notify implements [Conn]. It passes a client's response to the goroutine that waits for the response. If the message
// is a cancellation, Notify ends the cancelled request. All other messages are dropped, because a stateless server
// cannot use them.
func (b *sessions) Notify(_ context.Context, req Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := req.Message
	switch {
	case m.Kind == jsonrpc.Response:
		responses := b.pending[jsonrpc.IDKey(req.ID())]
		if responses == nil {
			return nil // the request has ended
		}
		answer, err := jsonrpc.ReadAnswer(bytes.Clone(m.Raw), jsonrpc.AnswerLimits())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNeverSent, err)
		}
		select {
		case responses <- answer:
		default: // the request already has a response
		}
	case m.Method == mcp.MethodCancelled:
		key := jsonrpc.IDKey(m.RequestID.Of(m.Raw))
		for call := range b.calls {
			if call.key == key {
				call.cancel(ErrCancelled)
			}
		}
	}
	return nil
}

// Listen implements [Conn]. The stream is a subscription to changes of all lists, and to updates of the resources to
// which the session is subscribed.
func (b *sessions) Listen(ctx context.Context, to Listener) error {
	opened := sync.OnceFunc(to.Opened)
	for {
		wanted, renewed := b.wants()
		resubscribe, err := b.subscribe(ctx, to, opened, wanted, renewed)
		if err != nil || !resubscribe {
			return err
		}
	}
}

// subscribe passes the events of one subscription to the listener. resubscribe is true if the caller must then open a
// new subscription.
func (b *sessions) subscribe(ctx context.Context, to Listener, opened func(), wanted Wanted, renewed <-chan struct{}) (resubscribe bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	all.Go(func() {
		select {
		case <-renewed:
			cancel(errRenewed)
		case <-ctx.Done():
		}
	})
	var heard error
	id := newRequestID()
	own := Subscribe(id, b.client, wanted)
	answer, err := b.Conn.Request(ctx, own.inTrace(ctx, to.Room), func(message []byte) {
		if m, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits()); err == nil && m.Method == mcp.MethodAcknowledged {
			opened()
			return
		}
		opened() // even if the server has sent no acknowledgement
		if heard == nil {
			heard = to.Event(Event{Message: message})
		}
		if heard != nil {
			cancel(heard)
		}
	})
	switch {
	case heard != nil:
		return false, heard
	case errors.Is(context.Cause(ctx), errRenewed):
		to.Room.Settle(0)
		return true, nil
	case err == nil && answer.Message.Error.Present():
		return false, fmt.Errorf("%w: it refused the subscription", ErrNoStream)
	default:
		return false, err
	}
}

// errRenewed means that a subscription ends because a new subscription replaces it.
var errRenewed = errors.New("the subscription has changed")
