package upstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
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
		Conn: under.conn, greeting: &greeting, guesses: s.transport.Kind() == "stdio",
		parked: make(map[string]*parked), heard: make(map[*listener]struct{}), singles: make(chan struct{}, 1),
	}
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

// parked is a request on its way to a server that may ask.
type parked struct {
	of *stateless
	// digest is of what it asks for: another request does not go on with it.
	digest [sha256.Size]byte
	// id and token are those that the server knows, raw, and shown the client's token; absent for none.
	// Clients of a caller share a session, and may use the same ones.
	id, token, shown []byte
	// asks says that the client can be asked in the answer.
	asks   bool
	cancel context.CancelCauseFunc
	has    *room.Holding
	done   chan struct{} // closed once the answer is there
	answer Answer
	err    error
	asked  chan struct{} // has something once the server asks
	expiry *time.Timer   // while it waits for its client

	mu        sync.Mutex
	events    func([]byte)         // of the client that waits now; nil for nobody
	logs      bool                 // whether it wants lines of the log
	questions map[string]*question // not answered yet, by the names that the client knows them by
	count     int
}

// question is what a server asks, under its id and as a whole.
type question struct {
	id, method, params, raw []byte
	// may says that the client may be asked, as was decided for the leg at hand.
	may bool
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
		if p, err = b.begin(ctx, req, sent, digest); err != nil {
			return Answer{}, err
		}
	} else if p = b.resume(said.State, digest); p == nil {
		return failed(req, mcp.CodeInvalidParams, "The requestState is of no request that waits here, or of another one: make the request anew.")
	}
	p.attend(events, said.Meta.Level != "")
	defer p.attend(nil, false)
	if err := p.reply(ctx, said.Responses); err != nil {
		p.end(err)
		return Answer{}, sentBefore(err)
	}
	return p.await(ctx, req)
}

// begin sends a request, which goes on whatever becomes of who waits for it first.
func (b *stateless) begin(ctx context.Context, req Request, sent *gate.Message, digest [sha256.Size]byte) (*parked, error) {
	p := &parked{
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

// ownID is an id of the gateway's own, as raw JSON.
func ownID() []byte { return []byte(strconv.Quote("sluice-" + rand.Text())) }

// resume is the request that waits under this state, which counts once.
func (b *stateless) resume(state string, digest [sha256.Size]byte) *parked {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.parked[state]
	if p == nil || p.digest != digest {
		return nil
	}
	delete(b.parked, state)
	p.expiry.Stop()
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
	if m.Kind == gate.Request {
		if !p.takes(m) {
			p.of.refuse(m.ID.Of(raw))
		}
		return
	}
	if m.Method == mcp.MethodCancelled {
		p.takeBack(m.RequestID.Of(raw))
		return
	}
	if at := m.ProgressToken; m.Method == mcp.MethodProgress {
		if p.token == nil || !bytes.Equal(at.Of(raw), p.token) {
			return // of nothing that the client asked for
		}
		if raw, err = gate.Splice(raw, gate.Edit{Span: at, With: p.shown}); err != nil {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events != nil && (m.Method != mcp.MethodMessage || p.logs) {
		p.events(raw)
	}
}

// takes notes what the server asks; false where the client can't be asked.
func (p *parked) takes(m *gate.Answer) bool {
	p.of.mu.Lock()
	unclear := p.of.guesses && p.of.running > 1
	p.of.mu.Unlock()
	if !p.asks || unclear || len(m.Raw) > maxQuestion || !p.has.Add(len(m.Raw)) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.questions) == maxQuestions {
		return false
	}
	p.count++
	own := bytes.Clone(m.Raw) // what it came in is the next message's
	p.questions[strconv.Itoa(p.count)] = &question{id: m.ID.Of(own), method: []byte(strconv.Quote(m.Method)), params: m.Params.Of(own), raw: own}
	select {
	case p.asked <- struct{}{}:
	default: // it is known
	}
	return true
}

// takeBack drops what the server does not ask any more.
func (p *parked) takeBack(id []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.questions, func(_ string, q *question) bool { return gate.SameID(q.id, id) })
}

// refuse tells the server that nobody takes what it asks.
func (b *stateless) refuse(id []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_ = b.Notify(ctx, Refused(id, mcp.CodeMethodUnknown, NotCarried).in(ctx, nil)) // a server that does not hear it waits for its own time
}

// reply gives the server the client's answers to what it was asked. What it was not is decided anew.
func (p *parked) reply(ctx context.Context, responses map[string]jsontext.Value) error {
	p.mu.Lock()
	var replies [][]byte
	for name, q := range p.questions {
		result, answered := responses[name]
		if answered && q.may {
			replies = append(replies, slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), q.id, []byte(`,"result":`), result, []byte(`}`)))
			delete(p.questions, name)
		}
		q.may = false
	}
	p.mu.Unlock()
	limits := gate.AnswerLimits()
	limits.IDBytes = 1 << 10
	for _, raw := range replies {
		m, err := gate.Parse(raw, limits)
		if err == nil {
			err = p.of.Notify(ctx, Request{Message: m})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// await waits for the answer, or for what the server asks before it.
func (p *parked) await(ctx context.Context, req Request) (Answer, error) {
	for {
		select {
		case <-p.done: // then nothing that it has asked counts
			return p.whole(ctx, req)
		default:
		}
		open, ready := p.decide(ctx, req)
		switch {
		case ctx.Err() != nil: // nobody would get the state
		case !ready:
			continue // more has come meanwhile
		case open != nil:
			return p.park(req, open)
		}
		select {
		case <-p.done:
		case <-p.asked:
			select { // what is asked at once comes one after the other, and is one answer
			case <-p.done:
			case <-ctx.Done():
			case <-time.After(askedTogether):
			}
		case <-ctx.Done():
			p.end(context.Cause(ctx))
			return Answer{}, sentBefore(context.Cause(ctx))
		}
	}
}

// decide has it decided which questions the client may be asked, and returns them, as an object; nil
// for none. The others the server gets refused, and goes on. It is not ready where more has come.
func (p *parked) decide(ctx context.Context, req Request) (open []byte, ready bool) {
	p.mu.Lock()
	undecided := make(map[string]*question)
	for name, q := range p.questions {
		if !q.may {
			undecided[name] = q
		}
	}
	p.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(undecided), func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) { // as they came
		q, refused := undecided[name], (*Own)(nil)
		if req.May == nil {
			refused = new(Refused(q.id, mcp.CodeMethodUnknown, NotCarried))
		} else {
			refused = req.May(ctx, q.id, q.raw)
		}
		p.mu.Lock()
		if q.may = refused == nil; !q.may {
			delete(p.questions, name)
		}
		p.mu.Unlock()
		if refused != nil {
			_ = p.of.Notify(ctx, refused.in(ctx, nil)) // a server that does not hear it waits for its own time
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	asks := make(map[string]map[string]jsontext.Value, len(p.questions))
	for name, q := range p.questions {
		if !q.may {
			return nil, false
		}
		asks[name] = map[string]jsontext.Value{"method": q.method}
		if q.params != nil {
			asks[name]["params"] = q.params
		}
	}
	if len(asks) == 0 {
		return nil, true
	}
	open, err := json.Marshal(asks, json.Deterministic(true))
	if err != nil { // they were read out of JSON, so this can't be
		return nil, true
	}
	return open, true
}

// giveUp tells the server that nobody waits for a request any more.
func (b *stateless) giveUp(id []byte) { // in its own time: who gives up has gone
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	_ = b.Notify(ctx, Cancelled(id).in(ctx, nil)) // a server that does not hear it works in vain
}

// notifyTimeout bounds telling a server that a request was given up.
const notifyTimeout = 5 * time.Second

// end ends a request that nobody waits for, unless its answer is there.
func (p *parked) end(why error) {
	select {
	case <-p.done:
	default:
		p.cancel(why)
		p.of.giveUp(p.id)
		<-p.done
	}
	p.close()
}

// close lets go of what a request that has ended holds.
func (p *parked) close() {
	p.cancel(nil)
	p.has.Close()
	p.answer.Message = nil
}

// park keeps a request until its client makes it again, and answers with what the server asks.
func (p *parked) park(req Request, open []byte) (Answer, error) {
	state := rand.Text()
	m, err := gate.ReadAnswer(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":%s,"requestState":"%s"}}`, req.ID(), open, state), gate.AnswerLimits())
	if err != nil {
		p.end(ErrCancelled)
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	b := p.of
	b.mu.Lock()
	full := len(b.parked) >= maxParked || b.closed
	if !full {
		b.parked[state] = p
		p.expiry = time.AfterFunc(parkedFor, func() {
			if b.resume(state, p.digest) != nil { // nobody has come back
				p.end(ErrCancelled)
			}
		})
	}
	b.mu.Unlock()
	if full {
		p.end(ErrCancelled)
		return failed(req, mcp.CodeInternal, "Too many requests wait for this client.")
	}
	return Answer{Message: m, Status: http.StatusOK}, nil
}

// whole is the answer, for who waits for it now.
func (p *parked) whole(ctx context.Context, req Request) (Answer, error) {
	defer p.close()
	if p.err != nil {
		return p.answer, p.err
	}
	m := p.answer.Message
	if m.InputRequests.Present() {
		return Answer{}, fmt.Errorf("%w: it asks in a way that its revision does not have", ErrNoAnswer)
	}
	if req.Room != nil && !p.has.Give(req.Room) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, room.ErrFull)
	}
	if len(m.Raw) > fewBytes {
		end, err := req.Room.TurnFor(ctx, len(m.Raw))
		if err != nil {
			return Answer{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		defer end()
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

// fewBytes is how large an answer may be that is written anew without a turn.
const fewBytes = 64 << 10

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
