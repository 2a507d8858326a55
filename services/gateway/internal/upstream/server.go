package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A Server is one configured MCP server. It knows how it is, for people to see and to
// measure. It is safe for concurrent use.
type Server struct {
	transport Transport
	meters    *meters.Meters
	// network is how it is reached, as it is measured.
	network   string
	health    *health
	lastError atomic.Pointer[failure]
	waiting   *quota.Quota
}

// New returns the server that a transport reaches.
func New(t Transport, m *meters.Meters) (*Server, error) {
	if t == nil || m == nil {
		return nil, errors.New("upstream: a transport and meters are required")
	}
	return &Server{transport: t, meters: m, waiting: newWaiting(), network: spans.Transport(t.Kind()), health: &health{tell: func() { m.Rested(context.Background()) }}}, nil
}

// Transport is how it is reached: `http`, `stdio` or `grpc`.
func (s *Server) Transport() string { return s.transport.Kind() }

// CanBeModern reports whether it is reached in a way by which it may speak 2026-07-28.
func (s *Server) CanBeModern() bool { return s.transport.Kind() != "grpc" }

// ToolsChanged has something once the server has said that its list of tools has changed. One
// alone is to receive from it.
func (s *Server) ToolsChanged() <-chan struct{} { return s.transport.ToolsChanged() }

// InFlight is how many requests wait for their answers.
func (s *Server) InFlight() int32 {
	n, _ := s.health.now()
	return n
}

// RestsUntil is until when nothing is sent to it, because it was not reached many times in a row;
// zero where it does not rest.
func (s *Server) RestsUntil() time.Time {
	_, until := s.health.now()
	return until
}

// StartingSince is when the oldest start of its program began that is under way; zero if none is.
func (s *Server) StartingSince() time.Time {
	if starter, ok := s.transport.(Starter); ok {
		return starter.StartingSince()
	}
	return time.Time{}
}

// ProgramNotice says what an operator should know of its program though calls go on; empty if there is nothing.
func (s *Server) ProgramNotice() string {
	if starter, ok := s.transport.(Starter); ok {
		return starter.Notice()
	}
	return ""
}

// LastError says why the last request had no usable answer; empty if it had one, or none was made. It holds nothing of
// a request and, of the server's own words, what a [CauseError] may hold.
func (s *Server) LastError() string {
	if last := s.lastError.Load(); last != nil {
		return last.text
	}
	return ""
}

// LastErrorInDetail is LastError as operators of the home tenant may read it, who are told what a program has said.
func (s *Server) LastErrorInDetail() string {
	last := s.lastError.Load()
	if last == nil || last.detail == "" {
		return s.LastError()
	}
	return last.text + ": " + last.detail
}

// Open opens a session for a principal with this hello, in the trace of ctx, and returns
// it with the answer. What that takes is has, as in [Session.Ask]. Errors are those of
// [Session.Ask].
func (s *Server) Open(ctx context.Context, who principal.Key, hello Own, has *room.Holding) (*Session, Answer, error) {
	req := hello.in(ctx, has)
	if req.Method() == mcp.MethodDiscover && !s.CanBeModern() {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, ErrRevision)
	}
	var conn Conn
	answer, err := s.watch(ctx, req.Method(), func() (answer Answer, err error) {
		conn, answer, err = s.transport.Open(ctx, who, req)
		return answer, err
	})
	if err != nil {
		return nil, answer, err
	}
	return &Session{server: s, conn: conn, version: versionOf(answer), since: time.Now()}, answer, nil
}

// versionOf is the revision that an answer to initialize names; empty where it names none.
func versionOf(a Answer) string {
	if a.Message == nil {
		return ""
	}
	version, err := jsontext.AppendUnquote(nil, a.Message.ProtocolVersion.Of(a.Message.Raw))
	if err != nil {
		return ""
	}
	return string(version)
}

// Close ends every session and waits for what was started.
func (s *Server) Close() error { return s.transport.Close() }

// Why says why a request has no usable answer, in words that every caller may know: the error's own may quote what a
// server wrote.
func Why(a Answer, err error) string { return why(a, err).text }

func why(a Answer, err error) failure {
	class := ClassOf(err).Error()
	if full := quota.Why(err); full != "" {
		return failure{text: full}
	}
	for _, own := range []error{ErrRests, ErrBusy, ErrOneSession} {
		if errors.Is(err, own) {
			return failure{text: own.Error()}
		}
	}
	if limit, ok := errors.AsType[*LimitError](err); ok {
		return failure{text: limit.Error()}
	}
	if errors.Is(err, room.ErrFull) {
		return failure{text: "its answer found no room: others are read, or sent, too slowly, or there are too many at once"}
	}
	if errors.Is(err, intake.ErrSlow) {
		return failure{text: class + ": it sent a large one too slowly"}
	}
	if errors.Is(err, ErrSessionLost) {
		return failure{text: class + ": " + ErrSessionLost.Error() + " (HTTP status " + strconv.Itoa(a.Status) + "), so its client's session ends"}
	}
	if cause := CauseOf(err); cause != nil {
		return failure{text: cause.Text, detail: cause.Detail}
	}
	if wrong := WhatIsWrong(err); wrong != "" && a.Status < http.StatusMultipleChoices {
		return failure{text: class + ": " + wrong}
	}
	if a.Status >= http.StatusMultipleChoices {
		return failure{text: fmt.Sprintf("%s: HTTP status %d", class, a.Status)}
	}
	if known := Network(err); known != "" {
		return failure{text: class + ": " + known}
	}
	return failure{text: class}
}

// failure is why a request had no usable answer: what every caller may know, and what operators of the home tenant may
// know beside it.
type failure struct{ text, detail string }
