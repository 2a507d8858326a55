// Package discovery is the gateway's own view of a server: how it greets and what it
// lists, as it tells a client that says nothing of itself. Who may come by nothing on
// a server is answered from it, and so is which tools there are.
package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mirror"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// Fresh is how long what was found counts.
	Fresh = 5 * time.Minute
	// firstPause is how long a server that could not be asked is not asked again. It doubles with each failure in a row,
	// up to longestPause.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
	// insists is for how many failures in a row [Server.Insist] waits.
	insists = 2
	// closeTimeout bounds ending the session.
	closeTimeout = 5 * time.Second
	// maxPages and maxTools bound what is read of a list, and MaxMessage of upstream
	// how large it may be: as one page may.
	maxPages = 100
	maxTools = 10_000
)

// who is for whom the gateway's sessions are opened.
var who = principal.Key{Tenant: "system", Subject: principal.Catalogue} //nolint:gochecknoglobals // a constant, which Go has none of for structs

// own is how the gateway calls itself.
var own = &upstream.Client{Name: "sluice", Version: "1"} //nolint:gochecknoglobals // a constant, which Go has none of for structs

// asked is on whose behalf the catalogue is told.
func asked() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: principal.Catalogue, Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

// ErrList means that a server's list of tools can't be read.
var ErrList = errors.New("the server's answer is no list of tools")

// Found is what a server told. It does not change.
type Found struct {
	// Greeting is the answer to initialize, or server/discover; it has a result.
	Greeting *gate.Answer
	// List is an answer to tools/list with all tools, in one page.
	List *gate.Answer
	// Version is the revision of MCP that was agreed on, and Known what the catalogue
	// knows of the list.
	Version string
	Known   *catalogue.Known
	// Aliases are what its tools are called among those of all servers.
	Aliases joint.Aliases
	// Joint is List for one of many servers: without tools that have not MCP's form, for a client that checks it would
	// refuse the lists of all, and without optional members that are null.
	Joint *gate.Answer
	// Faults are what keeps tools of List from clients, in the order of the list.
	Faults []Fault
	// mirrors are which arguments of its tools heads say too, of clients without sessions.
	mirrors map[string][]mirror.Binding
	// At is when the server was asked.
	At time.Time
}

// by is who asks for the list, where there are no sessions; else nil.
func (f *Found) by() *upstream.Client {
	if f.Version != mcp.Modern {
		return nil
	}
	return own
}

// Config is what a view is of.
type Config struct {
	// Name is the server's.
	Name string
	// Version is the revision of MCP that it is asked in; empty: the newest with sessions or, where
	// it has none, without.
	Version string
	// Timeout bounds asking it.
	Timeout time.Duration
}

// Deps are the live objects that a [Server] works with. Every field is required.
type Deps struct {
	Server *upstream.Server
	// Room is where answers lie until they are read.
	Room      *room.Room
	Catalogue *catalogue.Reporter
	// Changed is told when the server lists other tools than before. It is to return at once.
	Changed func()
}

// Server asks one server. It is safe for concurrent use.
type Server struct {
	cfg  Config
	deps Deps

	// last is found, for each call that asks for it.
	last atomic.Pointer[Found]

	mu    sync.Mutex
	found *Found
	// greeted says that the server has greeted, whatever came of its list.
	greeted bool
	// changes is how often its list was another than before.
	changes int
	// again says that the server will be asked again soon (Doubt).
	again bool
	// failures is how often in a row it was not found.
	failures int
	err      error // why it was not found at failed
	failed   time.Time
	asking   chan struct{} // closed when who asks now has an answer; nil where nobody does
}

// New returns a view of a server of which nothing is known yet.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Server == nil || deps.Room == nil || deps.Catalogue == nil || deps.Changed == nil || cfg.Timeout <= 0 {
		return nil, errors.New("discovery: a server, room, the catalogue, somebody told of changes and a positive timeout are required")
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Last returns what the server told last, however long ago; nil where it has told nothing.
func (s *Server) Last() *Found { return s.last.Load() }

// Changes is how often the server was found to list other tools than before.
func (s *Server) Changes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Greeted reports whether the server speaks the revision, as far as is known.
func (s *Server) Greeted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.greeted
}

// Refused reports whether the server has said in the last five minutes that it does not speak the
// revision.
func (s *Server) Refused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.err, upstream.ErrRevision) && time.Since(s.failed) <= Fresh
}

// Hung reports whether the server has left the question unanswered in the last five minutes.
func (s *Server) Hung() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.err, upstream.ErrTimeout) && time.Since(s.failed) <= Fresh
}

// Untold returns the error that wraps [catalogue.ErrAway] if nothing was found because the catalogue did not take the
// server's list. What a session is listed then is not known as accepted, though no operator has to accept it.
func (s *Server) Untold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found == nil && errors.Is(s.err, catalogue.ErrAway) {
		return s.err
	}
	return nil
}

// Insist is [Server.Found] for a session that the server has just answered: if the server could not be asked a moment
// ago, Insist waits until it is asked again, at most twice in a row of failures. It returns nil if nothing was found.
func (s *Server) Insist(ctx context.Context) *Found {
	for {
		found, err := s.Found(ctx, Fresh)
		if err == nil {
			return found
		}
		s.mu.Lock()
		wait := time.Until(s.failed.Add(s.pause()))
		over := s.failures > insists || s.givesUp()
		s.mu.Unlock()
		if over || ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait + time.Millisecond):
		}
	}
}

// Mirrors are which arguments of a tool a call's head says too, as the server told last.
func (s *Server) Mirrors(tool string) []mirror.Binding {
	if found := s.Last(); found != nil {
		return found.mirrors[tool]
	}
	return nil
}

// Renew has the server asked where what it told is older than age, and waits for nothing.
func (s *Server) Renew(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != nil || s.found != nil && time.Since(s.found.At) <= age || time.Since(s.failed) <= s.pause() {
		return
	}
	s.asking = make(chan struct{})
	go func() { _, _ = s.ask(context.Background()) }() // what comes of it is kept
}

// Doubt has the server asked again because it has listed other definitions to a session: at once, and Doubt waits for
// it, if what was found is older than age. Otherwise the server is asked once it is that old, and Doubt returns.
func (s *Server) Doubt(ctx context.Context, age time.Duration) {
	s.mu.Lock()
	if s.found == nil || time.Since(s.found.At) > age {
		s.mu.Unlock()
		_, _ = s.Found(ctx, age) // what comes of it is kept
		return
	}
	defer s.mu.Unlock()
	if s.again {
		return
	}
	s.again = true
	time.AfterFunc(age-time.Since(s.found.At)+time.Millisecond, func() {
		s.mu.Lock()
		s.again = false
		s.mu.Unlock()
		s.Renew(age)
	})
}

// Found returns what the server tells, as of at most age ago. Of many who want to
// know one asks, for all. Errors are those of [upstream.Session], or wrap [ErrList] or
// [catalogue.ErrAway].
func (s *Server) Found(ctx context.Context, age time.Duration) (*Found, error) {
	for {
		s.mu.Lock()
		switch {
		case s.found != nil && time.Since(s.found.At) <= age:
			defer s.mu.Unlock()
			return s.found, nil
		case time.Since(s.failed) <= s.pause():
			defer s.mu.Unlock()
			return nil, s.err
		case s.asking == nil:
			s.asking = make(chan struct{})
			s.mu.Unlock()
			return s.ask(ctx)
		}
		asking := s.asking
		s.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", upstream.ErrNeverSent, ctx.Err())
		}
	}
}

// pause is how long the server is not asked again after the last failure; 0 after none. The lock is held.
func (s *Server) pause() time.Duration {
	switch {
	case s.err == nil:
		return 0
	case s.givesUp():
		return longestPause
	default:
		return min(firstPause<<min(s.failures-1, 10), longestPause)
	}
}

// givesUp reports whether to ask the server again soon would cost its callers more, or change nothing: it left the
// question unanswered, or it does not speak the revision. The lock is held.
func (s *Server) givesUp() bool {
	return errors.Is(s.err, upstream.ErrTimeout) || errors.Is(s.err, upstream.ErrRevision)
}

// ask asks the server, whoever of those that wait is still there then.
func (s *Server) ask(ctx context.Context) (*Found, error) {
	ctx = trace.ContextWithSpan(context.WithoutCancel(ctx), nil) // it is asked for all, so in the trace of none
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	at := time.Now()
	found, err := (*Found)(nil), fmt.Errorf("%w: it could not be asked", upstream.ErrNoAnswer)
	defer func() { s.tell(found, err) }() // also where asking panics
	found, err = s.look(ctx, at)
	return found, err
}

// tell notes what came of asking, and lets go of those who wait for it.
func (s *Server) tell(found *Found, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err == nil {
		if s.found == nil || !bytes.Equal(s.found.List.Raw, found.List.Raw) {
			s.changes++
			defer s.deps.Changed()
		}
		s.found, s.failures = found, 0
	} else {
		s.failed = time.Now()
		s.failures++
	}
	if errors.Is(err, upstream.ErrRevision) {
		s.greeted, s.found = false, nil // it may have been put back
	}
	s.last.Store(s.found)
	close(s.asking)
	s.asking = nil
}

func (s *Server) look(ctx context.Context, at time.Time) (*Found, error) {
	has := s.deps.Room.Open(&room.Holder{Server: s.cfg.Name})
	defer has.Close()
	found, sess, err := s.greet(ctx, has)
	if err != nil {
		return nil, err
	}
	defer end(ctx, sess)
	s.greets()
	found.At = at
	if found.List, err = list(ctx, sess, found.by(), has); err != nil {
		return nil, err
	}
	found.Aliases, found.mirrors = joint.AliasesOf(s.cfg.Name, namesOf(found.List)), mirrors(found.List)
	if found.Joint, found.Faults, err = conform(s.cfg.Name, found.List, found.Aliases); err != nil {
		return nil, err
	}
	found.Known, err = s.deps.Catalogue.Of(ctx, catalogue.List{Server: s.cfg.Name, Version: found.Version, Whole: true, To: asked()}, found.List, 0)
	return found, err
}

func (s *Server) greets() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greeted = true
}

func namesOf(list *gate.Answer) (out []string) {
	for _, t := range list.Tools {
		out = append(out, t.Name)
	}
	return out
}

// mirrors returns the bindings of a list's tools that have some, by their names.
func mirrors(list *gate.Answer) map[string][]mirror.Binding {
	out := make(map[string][]mirror.Binding)
	for _, t := range list.Tools {
		if bindings := mirror.Of(t.Definition.Of(list.Raw)); bindings != nil {
			out[t.Name] = bindings
		}
	}
	return out
}

// greet opens a session, or finds that none is needed. Where no revision is asked for it is the
// newest with sessions: servers without sessions alone are asked a second time.
func (s *Server) greet(ctx context.Context, has *room.Holding) (*Found, *upstream.Session, error) {
	if s.cfg.Version == mcp.Modern {
		return s.discover(ctx, has)
	}
	sess, opened, err := s.deps.Server.Open(ctx, who, upstream.Initialize(s.cfg.Version, own.Name, own.Version), has)
	if s.cfg.Version == "" && s.deps.Server.CanBeModern() && opened.Refuses() {
		if err == nil {
			end(ctx, sess)
		}
		has.Keep(0)
		if found, sess, modern := s.discover(ctx, has); modern == nil {
			return found, sess, nil
		}
	}
	if err != nil {
		return nil, nil, err
	}
	found, err := s.begin(ctx, sess, opened.Message)
	if err != nil {
		end(ctx, sess)
	}
	return found, sess, err
}

// begin puts a session into use.
func (s *Server) begin(ctx context.Context, sess *upstream.Session, greeting *gate.Answer) (*Found, error) {
	if greeting.Error.Present() {
		return nil, fmt.Errorf("%w: it refused to open a session", upstream.ErrNoAnswer)
	}
	if err := sess.Tell(ctx, upstream.Initialized()); err != nil {
		return nil, err
	}
	version, err := jsontext.AppendUnquote(nil, greeting.ProtocolVersion.Of(greeting.Raw))
	if err != nil || !mcp.IsSupported(string(version)) {
		return nil, fmt.Errorf("%w: it speaks no revision of MCP that is spoken here", upstream.ErrNoAnswer)
	}
	return &Found{Greeting: greeting, Version: string(version)}, nil
}

// discover asks what the server has in 2026-07-28.
func (s *Server) discover(ctx context.Context, has *room.Holding) (*Found, *upstream.Session, error) {
	sess, answer, err := s.deps.Server.Open(ctx, who, upstream.Discover(own), has)
	if err != nil {
		return nil, nil, err
	}
	return &Found{Greeting: answer.Message, Version: mcp.Modern}, sess, nil
}

// end ends the session; what comes of it changes nothing.
func end(ctx context.Context, sess *upstream.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = sess.Close(ctx)
}

// list reads all pages of a list and makes one of them.
func list(ctx context.Context, sess *upstream.Session, by *upstream.Client, has *room.Holding) (*gate.Answer, error) {
	whole := bytes.NewBufferString(`{"jsonrpc":"2.0","id":0,"result":{"tools":[`)
	tools, cursor, given := 0, "", make(map[string]bool)
	for n := range maxPages {
		if given[cursor] {
			return nil, &listError{fmt.Sprintf("page %d has a cursor that was given before", n)}
		}
		given[cursor] = true
		has.Keep(0) // what a page says is taken from it before the next one is read
		answer, err := sess.Ask(ctx, upstream.ListTools(cursor, by), has, nil)
		if err != nil {
			return nil, err
		}
		page := answer.Message
		none := cursor == "" && upstream.HasCode(page, mcp.CodeMethodUnknown) // a server without tools
		switch tools += len(page.Tools); {
		case page.Error.Present() && !none:
			return nil, &listError{"the server answers with an error"}
		case !page.ToolList.Present() && !none:
			return nil, &listError{"the answer has no list of tools"}
		case tools > maxTools:
			return nil, &listError{fmt.Sprintf("it has more than %d tools", maxTools)}
		case whole.Len()+len(page.Raw) > upstream.MaxMessage:
			return nil, &listError{fmt.Sprintf("it has more than %d bytes", upstream.MaxMessage)}
		}
		for _, t := range page.Tools {
			if whole.Bytes()[whole.Len()-1] != '[' {
				whole.WriteByte(',')
			}
			whole.Write(t.Definition.Of(page.Raw))
		}
		raw := page.NextCursor.Of(page.Raw)
		next, _ := jsontext.AppendUnquote(nil, raw)
		if cursor = string(next); cursor == "" {
			whole.WriteByte(']')
			if by != nil {
				whole.WriteString(`,"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
			}
			whole.WriteString(`}}`)
			return gate.ReadAnswer(whole.Bytes(), gate.AnswerLimits())
		}
	}
	return nil, &listError{fmt.Sprintf("it has more than %d pages", maxPages)}
}
