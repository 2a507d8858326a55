package upstream

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// parkedFor is how long a server's question waits for the client to make its request again, and
	// maxParked how many requests of one client on one server may wait so.
	parkedFor = 10 * time.Minute
	maxParked = 16
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
	greeting := *answer.Message
	greeting.Raw = bytes.Clone(greeting.Raw) // what it came in is another's by then
	discovered, err := Discovered(&greeting, first.ID())
	if err != nil {
		return nil, answer, errors.Join(fmt.Errorf("%w: it greets in a way that can't be read: %w", ErrNoAnswer, err), under.Close(ctx))
	}
	under.conn = &stateless{Conn: under.conn, greeting: &greeting, parked: make(map[string]*parked), heard: make(map[*listener]struct{})}
	return under, Answer{Message: discovered, Status: http.StatusOK}, nil
}

// Discovered is what an answer to initialize says, as an answer to server/discover with this raw id.
func Discovered(greeting *gate.Answer, id []byte) (*gate.Answer, error) {
	var said struct {
		Capabilities jsontext.Value `json:"capabilities"`
		Server       jsontext.Value `json:"serverInfo"`
		Instructions jsontext.Value `json:"instructions"`
	}
	if err := json.Unmarshal(greeting.Result.Of(greeting.Raw), &said); err != nil {
		return nil, err
	}
	result := struct {
		Type         string                    `json:"resultType"`
		TTL          int                       `json:"ttlMs"`
		Scope        string                    `json:"cacheScope"`
		Versions     []string                  `json:"supportedVersions"`
		Capabilities jsontext.Value            `json:"capabilities,omitzero"`
		Instructions jsontext.Value            `json:"instructions,omitzero"`
		Meta         map[string]jsontext.Value `json:"_meta,omitzero"`
	}{mcp.ResultComplete, 0, "private", append([]string{mcp.Modern}, mcp.Supported()...), said.Capabilities, said.Instructions, nil}
	if said.Server.Kind() == '{' {
		result.Meta = map[string]jsontext.Value{mcp.MetaServerInfo: said.Server}
	}
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	return gate.ReadAnswer(slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"result":`), raw, []byte(`}`)), gate.AnswerLimits())
}

// Complete is an answer of a server with sessions to a method, as clients without one read it: its
// result says that it is complete, and for how long a cache may keep it, which is not at all.
func Complete(a *gate.Answer, method string) (*gate.Answer, error) {
	if !a.Result.Present() || a.ResultType.Present() {
		return a, nil
	}
	members := `"resultType":"complete"`
	if mcp.IsCacheable(method) && !a.TTL.Present() { // some say it in every revision
		members += `,"ttlMs":0`
	}
	if mcp.IsCacheable(method) && !a.CacheScope.Present() {
		members += `,"cacheScope":"private"`
	}
	if rest := bytes.TrimSpace(a.Raw[a.Result.Start+1 : a.Result.End-1]); len(rest) > 0 {
		members += ","
	}
	at := a.Result.Start + 1
	raw, err := gate.Splice(a.Raw, gate.Edit{Span: gate.Span{Start: at, End: at}, With: []byte(members)})
	if err != nil {
		return nil, err
	}
	return gate.ReadAnswer(raw, gate.AnswerLimits())
}

// stateless takes requests without sessions to a connection that has one. It is safe for concurrent
// use.
type stateless struct {
	Conn // with a session

	greeting *gate.Answer

	mu sync.Mutex
	// parked are the requests whose server asks, by the state that the client gives back.
	parked map[string]*parked
	// heard are the subscriptions, and hearing ends the stream that they share; nil for none.
	heard   map[*listener]struct{}
	hearing context.CancelFunc
}

// parked is a request on its way to a server that may ask.
type parked struct {
	// of is the digest of what it asks for: another request does not go on with it.
	of     [sha256.Size]byte
	id     []byte
	cancel context.CancelCauseFunc
	has    *room.Holding
	done   chan struct{} // closed once the answer is there
	answer Answer
	err    error
	asked  chan struct{} // has something once the server asks

	mu     sync.Mutex
	events func([]byte)        // of the client that waits now; nil for nobody
	logs   bool                // whether it wants lines of the log
	asks   map[string]question // not answered yet, by the names that the client knows them by
	count  int
}

// question is what a server asks, under its id and as a whole.
type question struct {
	id, method, params, raw []byte
	// may says that the client may be asked.
	may bool
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
	var again struct {
		Responses map[string]jsontext.Value `json:"inputResponses"`
		State     string                    `json:"requestState"`
		Meta      struct {
			Level string `json:"io.modelcontextprotocol/logLevel"`
		} `json:"_meta"`
	}
	if m := req.Message; m.Params.Present() {
		if err := json.Unmarshal(m.Params.Of(m.Raw), &again); err != nil {
			return failed(req, mcp.CodeInvalidParams, "The params are not of the form that MCP gives them.")
		}
	}
	sent, err := req.Message.Without()
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	of := sha256.Sum256(slices.Concat([]byte(sent.Method), []byte{0}, []byte(sent.Name), []byte{0}, []byte(sent.URI), []byte{0}, sent.Arguments.Of(sent.Raw)))
	p := (*parked)(nil)
	if again.State == "" && again.Responses == nil {
		p = b.begin(ctx, req, sent, of)
	} else if p = b.resume(again.State, of); p == nil {
		return failed(req, mcp.CodeInvalidParams, "The requestState is of no request that waits here, or of another one: make the request anew.")
	}
	p.attend(events, again.Meta.Level != "")
	defer p.attend(nil, false)
	if err := b.reply(ctx, p, again.Responses); err != nil {
		p.cancel(err)
		return Answer{}, err
	}
	return b.await(ctx, req, p)
}

// begin sends a request, which goes on whatever becomes of who waits for it first.
func (b *stateless) begin(ctx context.Context, req Request, sent *gate.Message, of [sha256.Size]byte) *parked {
	p := &parked{of: of, id: req.ID(), has: req.Room.Beside(), done: make(chan struct{}), asked: make(chan struct{}, 1), asks: make(map[string]question)}
	ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	under := req
	under.Message, under.Room, under.Mirrored = sent, p.has, nil
	go func() {
		defer close(p.done)
		p.answer, p.err = b.Conn.Request(ctx, under, p.event)
	}()
	return p
}

// resume is the request that waits under this state, which counts once.
func (b *stateless) resume(state string, of [sha256.Size]byte) *parked {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parked[state]
	if p == nil || p.of != of {
		return nil
	}
	delete(b.parked, state)
	return p
}

// attend sets who takes what the server says now.
func (p *parked) attend(events func([]byte), logs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events, p.logs = events, logs
}

// event takes what the server says before its answer.
func (p *parked) event(raw []byte) {
	m, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err != nil {
		return // the upstream reader let it through, so this can't be; nothing is lost by caution
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case m.Kind == gate.Request && len(p.asks) < maxParked:
		p.count++
		own := bytes.Clone(raw) // what it came in is the next message's
		p.asks[strconv.Itoa(p.count)] = question{id: m.ID.Of(own), method: []byte(strconv.Quote(m.Method)), params: m.Params.Of(own), raw: own}
		select {
		case p.asked <- struct{}{}:
		default: // it is known
		}
	case m.Kind == gate.Request, p.events == nil, m.Method == mcp.MethodMessage && !p.logs:
	default:
		p.events(raw)
	}
}

// reply gives the server the client's answers.
func (b *stateless) reply(ctx context.Context, p *parked, responses map[string]jsontext.Value) error {
	p.mu.Lock()
	var replies [][]byte
	for name, result := range responses {
		if q, is := p.asks[name]; is {
			replies = append(replies, slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), q.id, []byte(`,"result":`), result, []byte(`}`)))
			delete(p.asks, name)
		}
	}
	p.mu.Unlock()
	limits := gate.AnswerLimits()
	limits.IDBytes = 1 << 10
	for _, raw := range replies {
		m, err := gate.Parse(raw, limits)
		if err == nil {
			err = b.Notify(ctx, Request{Message: m})
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
	}
	return nil
}

// await waits for the answer, or for what the server asks before it.
func (b *stateless) await(ctx context.Context, req Request, p *parked) (Answer, error) {
	for {
		b.decide(ctx, req, p)
		if questions := p.questions(); questions != nil {
			return b.park(req, p, questions)
		}
		select {
		case <-p.done:
			return p.end(req)
		case <-p.asked:
		case <-ctx.Done():
			p.cancel(context.Cause(ctx))
			b.giveUp(p)
			<-p.done
			return p.end(req)
		}
	}
}

// decide has it decided which questions the client may be asked. The others the server gets refused,
// and goes on.
func (b *stateless) decide(ctx context.Context, req Request, p *parked) {
	p.mu.Lock()
	open := maps.Clone(p.asks)
	p.mu.Unlock()
	for name, q := range open {
		if q.may {
			continue
		}
		refused := new(Refused(q.id, mcp.CodeMethodUnknown, NotCarried))
		if req.May != nil {
			refused = req.May(ctx, q.id, q.raw)
		}
		p.mu.Lock()
		if q.may = refused == nil; q.may {
			p.asks[name] = q
		} else {
			delete(p.asks, name)
		}
		p.mu.Unlock()
		if refused != nil {
			_ = b.Notify(ctx, refused.in(ctx, nil)) // a server that does not hear it waits for its own time
		}
	}
}

// giveUp tells the server that nobody waits for a request any more.
func (b *stateless) giveUp(p *parked) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_ = b.Notify(ctx, Cancelled(p.id).in(ctx, nil)) // a server that does not hear it works in vain
}

// notifyTimeout bounds telling a server that a request was given up.
const notifyTimeout = 5 * time.Second

// questions are what the server asks that has no answer, as an object; nil for nothing.
func (p *parked) questions() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asks) == 0 {
		return nil
	}
	asks := make(map[string]map[string]jsontext.Value, len(p.asks))
	for name, q := range p.asks {
		asks[name] = map[string]jsontext.Value{"method": q.method}
		if q.params != nil {
			asks[name]["params"] = q.params
		}
	}
	raw, err := json.Marshal(asks, json.Deterministic(true))
	if err != nil { // they were read out of JSON, so this can't be
		return []byte("{}")
	}
	return raw
}

// park keeps a request until its client makes it again, and answers with what the server asks.
func (b *stateless) park(req Request, p *parked, questions []byte) (Answer, error) {
	state := rand.Text()
	b.mu.Lock()
	full := len(b.parked) >= maxParked
	if !full {
		b.parked[state] = p
	}
	b.mu.Unlock()
	if full {
		p.cancel(ErrCancelled)
		b.giveUp(p)
		<-p.done
		p.has.Close()
		return failed(req, mcp.CodeInternal, "Too many requests wait for this client.")
	}
	time.AfterFunc(parkedFor, func() {
		if b.resume(state, p.of) != nil { // nobody has come back
			p.cancel(ErrCancelled)
			b.giveUp(p)
			<-p.done
			p.has.Close()
		}
	})
	m, err := gate.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":%s,"requestState":"%s"}}`, req.ID(), questions, state), gate.AnswerLimits())
	return Answer{Message: m, Status: http.StatusOK}, err
}

// end is what came of a request, for who waits for it now.
func (p *parked) end(req Request) (Answer, error) {
	defer p.cancel(nil)
	defer p.has.Close()
	if p.err != nil {
		return p.answer, p.err
	}
	m := p.answer.Message
	if m.InputRequests.Present() {
		return Answer{}, fmt.Errorf("%w: it asks in a way that its revision does not have", ErrNoAnswer)
	}
	if !req.Room.Add(len(m.Raw)) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, room.ErrFull)
	}
	m, err := m.Addressed(req.ID())
	if err == nil {
		m, err = Complete(m, req.Method())
	}
	if err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	status := http.StatusOK
	if HasCode(m, mcp.CodeMethodUnknown) {
		status = http.StatusNotFound
	}
	return Answer{Message: m, Status: status}, nil
}

// Close implements [Conn]. What waits for a client ends.
func (b *stateless) Close(ctx context.Context) error {
	b.mu.Lock()
	waiting := b.parked
	b.parked = make(map[string]*parked)
	b.mu.Unlock()
	for _, p := range waiting {
		p.cancel(ErrClosed)
		<-p.done
		p.has.Close()
	}
	return b.Conn.Close(ctx)
}
