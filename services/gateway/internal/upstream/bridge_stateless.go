package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// parkedFor is how long a request waits for the client to repeat it with responses to the server's requests. maxParked
	// is the maximum number of such requests of one client at one server.
	parkedFor = 10 * time.Minute
	maxParked = 16
	// gatherTime is how long the bridge waits for further requests from the server after it has received one.
	gatherTime = 100 * time.Millisecond
	// maxQuestions is the maximum number of requests from the server that wait for responses during one call.
	maxQuestions = 16
	// maxQuestion is the maximum size of a request from the server. maxGreeting is the maximum size of the server's stored
	// response to initialize. Both are in bytes.
	maxQuestion = 1 << 20
	maxGreeting = 256 << 10
)

// withoutSessions opens a session with a server that supports only session-based revisions, for a client of revision
// 2026-07-28. If the server sends requests to the client during a call, the client receives them in an answer to the
// call. When the client repeats the call with its responses, the original call continues.
func (s *Server) withoutSessions(ctx context.Context, key principal.Key, first Request) (*Session, Answer, error) {
	name, version := first.Message.Client()
	claims := first.Message.Meta.Capabilities.Of(first.Message.Raw)
	if claims == nil {
		claims = []byte("{}")
	}
	under, answer, err := s.Open(ctx, key, initialize(mcp.Supported()[0], name, version, string(claims)).OnBehalfOf(first.Person), first.Room)
	if err != nil {
		return nil, answer, err
	}
	if answer.Message.Error.Present() || !mcp.IsSupported(versionOf(answer)) {
		return nil, answer, errors.Join(fmt.Errorf("%w: it did not open a session", ErrNoAnswer), under.Close(ctx))
	}
	if err := under.SendNotification(ctx, Initialized()); err != nil {
		return nil, answer, errors.Join(err, under.Close(ctx))
	}
	if len(answer.Message.Raw) > maxGreeting {
		return nil, answer, errors.Join(fmt.Errorf("%w: its answer to initialize has more than %d bytes", ErrNoAnswer, maxGreeting), under.Close(ctx))
	}
	greeting := *answer.Message
	greeting.Raw = bytes.Clone(greeting.Raw) // the buffer is reused later
	discovered, err := Discovered(&greeting, first.ID())
	if err != nil {
		return nil, answer, errors.Join(fmt.Errorf("%w: its answer to initialize can't be read: %w", ErrNoAnswer, err), under.Close(ctx))
	}
	under.conn = &stateless{
		Conn: under.conn, greeting: &greeting, server: s, accounts: first.Room.AccountsOf(key), ambiguous: s.transport.Kind() == "stdio",
		parked: make(map[string]*parked), listeners: make(map[*listener]struct{}), resourceLock: make(chan struct{}, 1),
		lost: make(chan struct{}),
	}
	return under, Answer{Message: discovered, Status: http.StatusOK}, nil
}

// stateless sends requests of revision 2026-07-28 over a connection that has a session. It is safe for concurrent use.
type stateless struct {
	Conn // a connection with a session

	greeting *jsonrpc.Answer
	server   *Server
	// accounts are the quota accounts to which waiting requests count.
	accounts principal.Accounts
	// ambiguous is true if it is not known to which calls the server's requests belong.
	ambiguous bool

	// resourceLock is locked while the bridge subscribes to a resource or unsubscribes from it. It is a channel, so that a
	// goroutine can stop waiting for the lock when the goroutine's context is done.
	resourceLock chan struct{}
	// all counts the goroutines that the bridge has started.
	all sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running int
	// parked contains the calls that wait for their clients to repeat them. The key is the state that the client receives
	// and sends back.
	parked map[string]*parked
	// listeners contains the subscriptions. endStream ends the stream that all subscriptions share. endStream is nil if
	// there is no stream.
	listeners map[*listener]struct{}
	endStream context.CancelFunc
	// lost is closed when the stream has ended because the session is lost. Before that, lostErr is set to the error of
	// the stream.
	lost    chan struct{}
	lostErr error
}

// retryMembers contains the members of params that the bridge reads. Responses and State occur only in repeated
// requests.
type retryMembers struct {
	Responses map[string]jsontext.Value `json:"inputResponses"`
	State     string                    `json:"requestState"`
	Meta      struct {
		Level string `json:"io.modelcontextprotocol/logLevel"`
	} `json:"_meta"`
}

// Request implements [Conn].
func (b *stateless) Request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	switch req.Method() {
	case mcp.MethodDiscover:
		answer, err := Discovered(b.greeting, req.ID())
		return Answer{Message: answer, Status: http.StatusOK}, err
	case mcp.MethodListen:
		return b.subscribe(ctx, req, events)
	}
	var members retryMembers
	if m := req.Message; m.Params.Present() {
		if err := json.Unmarshal(m.Params.Of(m.Raw), &members); err != nil {
			return errorAnswer(req, mcp.CodeInvalidParams, "The params are invalid.")
		}
	}
	sent, err := req.Message.WithoutClientMeta()
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	digest := sha256.Sum256(slices.Concat([]byte(sent.Method), []byte{0}, []byte(sent.Name), []byte{0}, []byte(sent.URI), []byte{0}, sent.Arguments.Of(sent.Raw)))
	p := (*parked)(nil)
	if members.State == "" && members.Responses == nil {
		if p, err = b.begin(ctx, req, sent, digest, events, members.Meta.Level != ""); err != nil {
			return Answer{}, err
		}
	} else if p = b.resume(members.State, digest); p == nil {
		return errorAnswer(req, mcp.CodeInvalidParams, "The requestState belongs to no waiting request, or to another one: send the request again without it.")
	} else {
		p.setReceiver(events, members.Meta.Level != "")
	}
	defer p.setReceiver(nil, false)
	if err := p.sendResponses(ctx, members.Responses); err != nil {
		p.cancelUnanswered(err)
		return Answer{}, sentBefore(err)
	}
	return p.await(ctx, req)
}

// begin sends a request that may need several round trips. During the first round trip, events is called with the
// notifications that belong to the request.
func (b *stateless) begin(ctx context.Context, req Request, sent *jsonrpc.Message, digest [sha256.Size]byte, events func([]byte), logs bool) (*parked, error) {
	p := &parked{
		events: events, logs: logs,
		of: b, digest: digest, id: newRequestID(), canAsk: mcp.IsMultiRound(sent.Method), has: req.Room.Sibling(),
		done: make(chan struct{}), questionAdded: make(chan struct{}, 1), questions: make(map[string]*question),
	}
	edits := []jsonrpc.Edit{{Span: sent.ID, With: p.id}}
	if token := sent.Meta.ProgressToken; token.Present() {
		p.token, p.clientToken = newRequestID(), bytes.Clone(token.Of(sent.Raw))
		edits = append(edits, jsonrpc.Edit{Span: token, With: p.token})
	}
	raw, err := jsonrpc.ApplyEdits(sent.Raw, edits...)
	limits := jsonrpc.AnswerLimits()
	limits.IDBytes = 1 << 10
	under := req
	if err == nil {
		under.Message, err = jsonrpc.Parse(raw, limits)
	}
	if err != nil {
		p.has.Close()
		return nil, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	under.Room, under.Mirrored = p.has, nil
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		p.has.Close()
		return nil, fmt.Errorf("%w: %w", ErrNeverSent, ErrClosed)
	}
	b.running++
	ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	b.all.Go(func() {
		defer close(p.done)
		defer func() {
			if panicked := recover(); panicked != nil { // in this goroutine, net/http does not recover panics
				p.err = fmt.Errorf("%w: reading its answer panicked: %v", ErrNoAnswer, panicked)
			}
			b.mu.Lock()
			b.running--
			b.mu.Unlock()
		}()
		p.answer, p.err = b.Conn.Request(ctx, under, p.handleMessage)
	})
	return p, nil
}

// resume removes the parked request with the given state and returns it. It returns nil if there is no such request.
func (b *stateless) resume(state string, digest [sha256.Size]byte) *parked {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parked[state]
	if p == nil || p.digest != digest {
		return nil
	}
	delete(b.parked, state)
	b.server.waiting.Release(&b.accounts, 1)
	p.expiry.Stop()
	return p
}

// Close implements [Conn]. It ends the parked requests and the goroutines of the bridge. It waits until they have ended
// or ctx is done.
func (b *stateless) Close(ctx context.Context) error {
	b.mu.Lock()
	waiting := b.parked
	b.parked, b.closed = make(map[string]*parked), true
	if b.endStream != nil {
		b.endStream()
		b.endStream = nil
	}
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var all sync.WaitGroup
		for _, p := range waiting {
			p.expiry.Stop()
			b.server.waiting.Release(&b.accounts, 1)
			all.Go(func() { p.cancelUnanswered(ErrClosed) })
		}
		all.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	err := b.Conn.Close(ctx) // also ends the requests in flight
	disconnected := make(chan struct{})
	go func() {
		defer close(disconnected)
		b.all.Wait()
	}()
	select {
	case <-disconnected:
	case <-ctx.Done():
	}
	return err
}
