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
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/trace"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/catalogue"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// Fresh is how long what was found counts.
	Fresh = 5 * time.Minute
	// failedFor is how long a server that could not be asked is not asked again.
	failedFor = 5 * time.Second
	// closeTimeout bounds ending the session.
	closeTimeout = 5 * time.Second
	// maxPages and maxTools bound what is read of a list, and MaxMessage of upstream
	// how large it may be: as one page may.
	maxPages = 100
	maxTools = 10_000
)

// who is for whom the gateway's sessions are opened.
var who = principal.Key{Tenant: "system", Subject: principal.Catalogue} //nolint:gochecknoglobals // a constant, which Go has none of for structs

// asked is on whose behalf the catalogue is told.
func asked() *identityv1.Principal {
	return &identityv1.Principal{Tenant: "default", Subject: principal.Catalogue, Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

// ErrList means that a server's list of tools can't be read.
var ErrList = errors.New("the server's answer is no list of tools")

// Found is what a server told. It does not change.
type Found struct {
	// Greeting is the answer to initialize; it has a result.
	Greeting *gate.Answer
	// List is an answer to tools/list with all tools, in one page.
	List *gate.Answer
	// Version is the revision of MCP that was agreed on, and Known what the catalogue
	// knows of the list.
	Version string
	Known   *catalogue.Known
	// At is when the server was asked.
	At time.Time
}

// Config is what a view is of.
type Config struct {
	// Name is the server's.
	Name string
	// Version is the revision of MCP that it is asked in; empty: the newest.
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
}

// Server asks one server. It is safe for concurrent use.
type Server struct {
	cfg  Config
	deps Deps

	mu     sync.Mutex
	found  *Found
	err    error // why it was not found at failed
	failed time.Time
	asking chan struct{} // closed when who asks now has an answer; nil where nobody does
}

// New returns a view of a server of which nothing is known yet.
func New(cfg Config, deps Deps) (*Server, error) {
	if deps.Server == nil || deps.Room == nil || deps.Catalogue == nil || cfg.Timeout <= 0 {
		return nil, errors.New("discovery: a server, room, the catalogue and a positive timeout are required")
	}
	return &Server{cfg: cfg, deps: deps}, nil
}

// Last returns what the server told last, however long ago; nil where it has told nothing.
func (s *Server) Last() *Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.found
}

// Renew has the server asked where what it told is older than age, and waits for nothing.
func (s *Server) Renew(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking != nil || s.found != nil && time.Since(s.found.At) <= age || s.err != nil && time.Since(s.failed) <= failedFor {
		return
	}
	s.asking = make(chan struct{})
	go func() { _, _ = s.ask(context.Background()) }() // what comes of it is kept
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
		case s.err != nil && time.Since(s.failed) <= failedFor:
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
		s.found = found
	} else {
		s.failed = time.Now()
	}
	close(s.asking)
	s.asking = nil
}

func (s *Server) look(ctx context.Context, at time.Time) (*Found, error) {
	has := s.deps.Room.Open(&room.Holder{Server: s.cfg.Name})
	defer has.Close()
	sess, opened, err := s.deps.Server.Open(ctx, who, upstream.Initialize(s.cfg.Version, "sluice", "1"), has)
	if err != nil {
		return nil, err
	}
	defer end(ctx, sess)
	if opened.Message.Error.Present() {
		return nil, fmt.Errorf("%w: it refused to open a session", upstream.ErrNoAnswer)
	}
	if err := sess.Tell(ctx, upstream.Initialized()); err != nil {
		return nil, err
	}
	version, err := jsontext.AppendUnquote(nil, opened.Message.ProtocolVersion.Of(opened.Message.Raw))
	if err != nil || !mcp.IsSupported(string(version)) {
		return nil, fmt.Errorf("%w: it speaks no revision of MCP that is spoken here", upstream.ErrNoAnswer)
	}
	found := &Found{Greeting: opened.Message, Version: string(version), At: at}
	if found.List, err = list(ctx, sess, has); err != nil {
		return nil, err
	}
	found.Known, err = s.deps.Catalogue.Of(ctx, catalogue.List{Server: s.cfg.Name, Version: found.Version, Whole: true, To: asked()}, found.List, 0)
	return found, err
}

// end ends the session; what comes of it changes nothing.
func end(ctx context.Context, sess *upstream.Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = sess.Close(ctx)
}

// noSuchMethod is what a server answers to a method that it does not have (JSON-RPC
// 2.0, section 5.1).
const noSuchMethod = "-32601"

func empty() (*gate.Answer, error) {
	return gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{"tools":[]}}`), gate.AnswerLimits())
}

// list reads all pages of a list and makes one of them.
func list(ctx context.Context, sess *upstream.Session, has *room.Holding) (*gate.Answer, error) {
	whole := bytes.NewBufferString(`{"jsonrpc":"2.0","id":0,"result":{"tools":[`)
	tools, cursor := 0, ""
	for range maxPages {
		has.Keep(0) // what a page says is taken from it before the next one is read
		answer, err := sess.Ask(ctx, upstream.ListTools(cursor), has, nil)
		if err != nil {
			return nil, err
		}
		page := answer.Message
		if cursor == "" && string(page.ErrorCode.Of(page.Raw)) == noSuchMethod { // a server without tools
			return empty()
		}
		if tools += len(page.Tools); !page.ToolList.Present() || tools > maxTools || whole.Len()+len(page.Raw) > upstream.MaxMessage {
			return nil, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ErrList)
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
			whole.WriteString(`]}}`)
			return gate.ReadAnswer(whole.Bytes(), gate.AnswerLimits())
		}
	}
	return nil, fmt.Errorf("%w: %w: it has more than %d pages", upstream.ErrNoAnswer, ErrList, maxPages)
}
