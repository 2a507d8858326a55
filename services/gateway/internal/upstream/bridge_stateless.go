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

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// parkedFor is how long a server's question waits for the client to make its request again, and
	// maxParked how many requests of one client on one server may wait so.
	parkedFor = 10 * time.Minute
	maxParked = 16
	// askedTogether is for how long more questions are waited for after the first.
	askedTogether = 100 * time.Millisecond
	// maxQuestions is how many of one request may wait for an answer at a time.
	maxQuestions = 16
	// maxQuestion is how large one may be, and maxGreeting what the server says of itself, which is
	// kept; in bytes.
	maxQuestion = 1 << 20
	maxGreeting = 256 << 10
)

// withoutSessions opens a session with a server that has nothing else, for requests without one: what
// the server asks while it works on a request is asked in an answer, and the request, made again, goes
// on where it was.
func (s *Server) withoutSessions(ctx context.Context, who principal.Key, first Request) (*Session, Answer, error) {
	name, version := first.Message.Client()
	claims := first.Message.Meta.Capabilities.Of(first.Message.Raw)
	if claims == nil {
		claims = []byte("{}")
	}
	under, answer, err := s.Open(ctx, who, initialize(mcp.Supported()[0], name, version, string(claims)), first.Room)
	if err != nil {
		return nil, answer, err
	}
	if answer.Message.Error.Present() || !mcp.IsSupported(versionOf(answer)) {
		return nil, answer, errors.Join(fmt.Errorf("%w: it opened no session", ErrNoAnswer), under.Close(ctx))
	}
	if err := under.Tell(ctx, Initialized()); err != nil {
		return nil, answer, errors.Join(err, under.Close(ctx))
	}
	if len(answer.Message.Raw) > maxGreeting {
		return nil, answer, errors.Join(fmt.Errorf("%w: its greeting has more than %d bytes", ErrNoAnswer, maxGreeting), under.Close(ctx))
	}
	greeting := *answer.Message
	greeting.Raw = bytes.Clone(greeting.Raw) // what it came in is another's by then
	discovered, err := Discovered(&greeting, first.ID())
	if err != nil {
		return nil, answer, errors.Join(fmt.Errorf("%w: it greets in a way that can't be read: %w", ErrNoAnswer, err), under.Close(ctx))
	}
	under.conn = &stateless{
		Conn: under.conn, greeting: &greeting, server: s, accounts: first.Room.AccountsOf(who), guesses: s.transport.Kind() == "stdio",
		parked: make(map[string]*parked), heard: make(map[*listener]struct{}), singles: make(chan struct{}, 1),
	}
	return under, Answer{Message: discovered, Status: http.StatusOK}, nil
}

// stateless takes requests without sessions to a connection that has one. It is safe for concurrent
// use.
type stateless struct {
	Conn // with a session

	greeting *gate.Answer
	server   *Server
	// accounts are those of the caller, against which what waits counts.
	accounts principal.Accounts
	// guesses says that the server does not tell to which request its questions belong.
	guesses bool

	// singles is the turn at asking for the changes of a resource, or for none, which have an order.
	singles chan struct{}
	// all are the goroutines that it has started.
	all sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// running is how many requests are on their way.
	running int
	// parked are the requests whose server asks, by the state that the client gives back.
	parked map[string]*parked
	// heard are the subscriptions, and hearing ends the stream that they share; nil for none.
	heard   map[*listener]struct{}
	hearing context.CancelFunc
}

// again is what a request says that is made again.
type again struct {
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
	var said again
	if m := req.Message; m.Params.Present() {
		if err := json.Unmarshal(m.Params.Of(m.Raw), &said); err != nil {
			return failed(req, mcp.CodeInvalidParams, "The params are not of the form that MCP gives them.")
		}
	}
	sent, err := req.Message.Without()
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	digest := sha256.Sum256(slices.Concat([]byte(sent.Method), []byte{0}, []byte(sent.Name), []byte{0}, []byte(sent.URI), []byte{0}, sent.Arguments.Of(sent.Raw)))
	p := (*parked)(nil)
	if said.State == "" && said.Responses == nil {
		if p, err = b.begin(ctx, req, sent, digest, events, said.Meta.Level != ""); err != nil {
			return Answer{}, err
		}
	} else if p = b.resume(said.State, digest); p == nil {
		return failed(req, mcp.CodeInvalidParams, "The requestState is of no request that waits here, or of another one: make the request anew.")
	} else {
		p.attend(events, said.Meta.Level != "")
	}
	defer p.attend(nil, false)
	if err := p.reply(ctx, said.Responses); err != nil {
		p.end(err)
		return Answer{}, sentBefore(err)
	}
	return p.await(ctx, req)
}

// begin sends a request, which goes on whatever becomes of who waits for it first, and hears of it from the
// first event.
func (b *stateless) begin(ctx context.Context, req Request, sent *gate.Message, digest [sha256.Size]byte, events func([]byte), logs bool) (*parked, error) {
	p := &parked{
		events: events, logs: logs,
		of: b, digest: digest, id: ownID(), asks: mcp.IsMultiRound(sent.Method), has: req.Room.Beside(),
		done: make(chan struct{}), asked: make(chan struct{}, 1), questions: make(map[string]*question),
	}
	edits := []gate.Edit{{Span: sent.ID, With: p.id}}
	if token := sent.Meta.ProgressToken; token.Present() {
		p.token, p.shown = ownID(), bytes.Clone(token.Of(sent.Raw))
		edits = append(edits, gate.Edit{Span: token, With: p.token})
	}
	raw, err := gate.Splice(sent.Raw, edits...)
	limits := gate.AnswerLimits()
	limits.IDBytes = 1 << 10
	under := req
	if err == nil {
		under.Message, err = gate.Parse(raw, limits)
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
			if panicked := recover(); panicked != nil { // it is nobody's request that net/http sees to
				p.err = fmt.Errorf("%w: reading its answer panicked: %v", ErrNoAnswer, panicked)
			}
			b.mu.Lock()
			b.running--
			b.mu.Unlock()
		}()
		p.answer, p.err = b.Conn.Request(ctx, under, p.event)
	})
	return p, nil
}

// resume is the request that waits under this state, which counts once.
func (b *stateless) resume(state string, digest [sha256.Size]byte) *parked {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parked[state]
	if p == nil || p.digest != digest {
		return nil
	}
	delete(b.parked, state)
	b.server.waiting.Give(&b.accounts, 1)
	p.expiry.Stop()
	return p
}

// Close implements [Conn]. What waits for a client ends, and all that was started, or ctx does.
func (b *stateless) Close(ctx context.Context) error {
	b.mu.Lock()
	waiting := b.parked
	b.parked, b.closed = make(map[string]*parked), true
	if b.hearing != nil {
		b.hearing()
		b.hearing = nil
	}
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var all sync.WaitGroup
		for _, p := range waiting {
			p.expiry.Stop()
			b.server.waiting.Give(&b.accounts, 1)
			all.Go(func() { p.end(ErrClosed) })
		}
		all.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	err := b.Conn.Close(ctx) // by which what is on its way ends, too
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		b.all.Wait()
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
	return err
}
