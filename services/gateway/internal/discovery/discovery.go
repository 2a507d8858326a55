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

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
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

// who is for whom the gateway's sessions are opened. No subject of a token has a
// colon.
var who = principal.Key{Tenant: "system", Subject: "system:catalogue"} //nolint:gochecknoglobals // a constant, which Go has none of for structs

// ErrList means that a server's list of tools can't be read.
var ErrList = errors.New("the server's answer is no list of tools")

// Found is what a server told. It does not change.
type Found struct {
	// Greeting is the answer to initialize; it has a result.
	Greeting *gate.Answer
	// List is an answer to tools/list with all tools, in one page.
	List *gate.Answer
	// At is when the server was asked.
	At time.Time
}

// Server asks one server. It is safe for concurrent use.
type Server struct {
	name    string
	up      *upstream.Server
	room    *room.Room
	timeout time.Duration

	mu     sync.Mutex
	found  *Found
	err    error // why it was not found at failed
	failed time.Time
	asking chan struct{} // closed when who asks now has an answer; nil where nobody does
}

// New returns a view of the server with a name, of which nothing is known yet. Asking it
// takes at most timeout, and what it answers lies in the room until it is read.
func New(name string, up *upstream.Server, answers *room.Room, timeout time.Duration) (*Server, error) {
	if up == nil || answers == nil || timeout <= 0 {
		return nil, errors.New("discovery: a server, room and a positive timeout are required")
	}
	return &Server{name: name, up: up, room: answers, timeout: timeout}, nil
}

// Found returns what the server tells, as of at most age ago. Of many who want to
// know one asks, for all. Errors are those of [upstream.Session], or wrap [ErrList].
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
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
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
	has := s.room.Open(&room.Holder{Server: s.name})
	defer has.Close()
	sess, opened, err := s.up.Open(ctx, who, upstream.Initialize("", "sluice", "1"), has)
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
	found := &Found{Greeting: opened.Message, At: at}
	found.List, err = list(ctx, sess, has)
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
		if string(page.ErrorCode.Of(page.Raw)) == noSuchMethod { // a server without tools
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
