package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
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
	lastError atomic.Pointer[string]
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

// CanBeModern tells whether it is reached in a way by which it may speak 2026-07-28.
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

// LastError says why the last request had no usable answer; empty where it had
// one, or none was made. It is the same for every principal's eyes: it holds
// nothing that a server wrote, and nothing of a request.
func (s *Server) LastError() string {
	if said := s.lastError.Load(); said != nil {
		return *said
	}
	return ""
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

// Why says why a request has no usable answer, in words that are ours alone: the
// error's own may quote what a server wrote.
func Why(a Answer, err error) string {
	said := ClassOf(err).Error()
	if full := quota.Why(err); full != "" {
		return full
	}
	for _, own := range []error{ErrRests, ErrBusy, ErrOneSession} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	if limit, ok := errors.AsType[*LimitError](err); ok {
		return limit.Error()
	}
	if errors.Is(err, room.ErrFull) {
		return "its answer found no room: others are read, or sent, too slowly, or there are too many at once"
	}
	if errors.Is(err, intake.ErrSlow) {
		return said + ": it sent a large one too slowly"
	}
	if errors.Is(err, ErrSessionLost) {
		return said + ": " + ErrSessionLost.Error() + " (HTTP status " + strconv.Itoa(a.Status) + "), so its client's session ends"
	}
	if wrong := WhatIsWrong(err); wrong != "" && a.Status < http.StatusMultipleChoices {
		return said + ": " + wrong
	}
	if a.Status >= http.StatusMultipleChoices {
		return fmt.Sprintf("%s: HTTP status %d", said, a.Status)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return said + ": there is no such file"
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return said + ": " + number.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return said + ": its host name was not resolved"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return said + ": its certificate can't be verified"
	}
	return said
}
