package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A Session is one session with a server: [Server.Open] and [Server.Later] make one. It
// is safe for concurrent use.
type Session struct {
	server *Server
	// open opens it when something is first to be sent; nil where it was open before.
	open func(context.Context, *room.Holding) (*Session, error)
	// whenOpen is called once it is open; may be nil.
	whenOpen func()
	// turn is held by who opens it. It is a channel, for nobody waits for it longer
	// than for its answer.
	turn chan struct{}

	mu   sync.Mutex
	conn Conn // nil until it is open
	// version is the revision that was agreed on, and since when it is open.
	version string
	since   time.Time
	// lost says that the server no longer knows it.
	lost bool
	// err is why it never will be open; nil while it may be, and where it was from the start:
	// then its transport knows whether it is closed.
	err error
}

// Later returns a session that the server knows nothing of until the first request: then
// open opens it, with room for the answer to that, and what can't be opened is tried again
// by the next. A notification before that has nobody to go to, and is dropped. Once it is open
// whenOpen is called, which may be nil.
func (s *Server) Later(open func(context.Context, *room.Holding) (*Session, error), whenOpen func()) *Session {
	return &Session{server: s, open: open, whenOpen: whenOpen, turn: make(chan struct{}, 1)}
}

// Forward sends what was judged, which the pipeline alone has. It returns the answer, as
// [Conn] does.
func (s *Session) Forward(ctx context.Context, req Request, events func(message []byte)) (Answer, error) {
	return s.request(ctx, req, events)
}

// Ask sends a request of the gateway's own in the trace of ctx. What its answer takes is
// has, which has to be as large before it is read; nil takes small answers alone. It
// returns the answer, as [Conn] does.
func (s *Session) Ask(ctx context.Context, own Own, has *room.Holding, events func(message []byte)) (Answer, error) {
	return s.request(ctx, own.in(ctx, has), events)
}

func (s *Session) request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	conn, err := s.now()
	if conn == nil && err == nil {
		conn, err = s.opened(ctx, req.Room)
	}
	if errors.Is(err, ErrRests) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, ErrRests)
	}
	if errors.Is(err, quota.ErrFull) || errors.Is(err, ErrBusy) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	if err != nil { // its class is that of another message: this one was not sent
		return Answer{}, Recast(ErrNeverSent, "open the session", err)
	}
	answer, err := s.server.watch(ctx, req.Method(), func() (Answer, error) { return conn.Request(ctx, req, events) })
	if errors.Is(err, ErrSessionLost) {
		s.mu.Lock()
		s.lost = true
		s.mu.Unlock()
	}
	return answer, err
}

// Lost reports whether the server no longer knows the session, so that its client has to open another.
func (s *Session) Lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// Tell sends a notification of the gateway's own, or its answer to a request of the server's
// own, in the trace of ctx. Errors are those of [Session.Ask].
func (s *Session) Tell(ctx context.Context, own Own) error { return s.tell(ctx, own.in(ctx, nil)) }

// Reply sends what a client says to a request of the server's own that was judged: its answer,
// or a notification of its progress. Errors are those of [Session.Ask].
func (s *Session) Reply(ctx context.Context, m *gate.Message) error {
	if m.Kind != gate.Response && m.Method != mcp.MethodProgress {
		return fmt.Errorf("%w: the message is no reply", ErrNeverSent)
	}
	return s.tell(ctx, Request{Message: m})
}

// Notify sends a notification that was judged. Errors are those of [Session.Ask].
func (s *Session) Notify(ctx context.Context, req Request) error {
	if req.Kind() != gate.Notification {
		return fmt.Errorf("%w: the message is no notification", ErrNeverSent)
	}
	if conn, err := s.now(); err == nil && conn == nil {
		return fmt.Errorf("%w: the session is not open yet", ErrNeverSent)
	}
	return s.tell(ctx, req)
}

func (s *Session) tell(ctx context.Context, req Request) error {
	conn, err := s.now()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNeverSent, err)
	case conn == nil:
		return nil
	}
	begin := time.Now()
	err = conn.Notify(ctx, req)
	if req.Kind() == gate.Notification {
		s.server.measure(ctx, req.Method(), Answer{}, err, begin)
	}
	return err
}

// Listen brings what the server says aside of all requests, as [Conn] does. A session that is
// not open yet has no stream.
func (s *Session) Listen(ctx context.Context, to Listener) error {
	conn, err := s.now()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	case conn == nil:
		return ErrNoStream
	default:
		return conn.Listen(ctx, to)
	}
}

// Close ends the session with the server. Requests in flight end.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	conn, version, since := s.conn, s.version, s.since
	if s.since = (time.Time{}); s.open != nil {
		s.conn, s.err = nil, ErrClosed
	}
	s.mu.Unlock()
	if conn == nil {
		return nil
	}
	if version != "" && !since.IsZero() {
		s.server.meters.Opened(ctx, version, s.server.network, time.Since(since))
	}
	return conn.Close(ctx)
}

// IsOpen reports whether it is open.
func (s *Session) IsOpen() bool {
	conn, err := s.now()
	return conn != nil && err == nil
}

// now returns the connection, nil where it is not open yet, or why it never will be.
func (s *Session) now() (Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.err
}

// opened opens the connection, unless somebody else does.
func (s *Session) opened(ctx context.Context, of *room.Holding) (Conn, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if conn, err := s.now(); conn != nil || err != nil {
		return conn, err
	}
	has := of.Beside()
	defer has.Close()
	opened, err := s.open(ctx, has)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.err == nil {
		s.conn, s.version, s.since = opened.conn, opened.version, opened.since
		s.mu.Unlock()
		if s.whenOpen != nil {
			s.whenOpen()
		}
		return opened.conn, nil
	}
	s.mu.Unlock()
	return nil, errors.Join(ErrClosed, opened.Close(ctx))
}

// watch notes what comes of a request.
func (s *Server) watch(ctx context.Context, method string, request func() (Answer, error)) (Answer, error) {
	begin := time.Now()
	answer, err := s.health.send(request)
	s.measure(ctx, method, answer, err, begin)
	switch {
	case err == nil:
		s.lastError.Store(nil)
	case errors.Is(context.Cause(ctx), context.Canceled), isOurs(err):
	default:
		s.lastError.Store(new(why(answer, err)))
	}
	return answer, err
}

// isOurs reports whether it was our side that ended a request, which says nothing about the server,
// or the server has answered that it speaks another revision.
func isOurs(err error) bool {
	return slices.ContainsFunc([]error{ErrCancelled, ErrClosed, ErrShutdown, ErrRevision, ErrRests, ErrBusy, room.ErrFull, quota.ErrFull}, func(own error) bool { return errors.Is(err, own) })
}

func (s *Server) measure(ctx context.Context, method string, a Answer, err error, begin time.Time) {
	o := meters.Operation{Method: method, Transport: s.network}
	switch {
	case errors.Is(err, ErrRevision):
		o.ErrorType = strconv.Itoa(mcp.CodeVersionUnsupported)
	case errors.Is(err, ErrNeverSent):
		o.ErrorType = meters.Unavailable
	case errors.Is(err, ErrTimeout):
		o.ErrorType = meters.Timeout
	case err != nil:
		o.ErrorType = meters.Unknown
	case a.Message != nil: // a notification has no answer
		o.ErrorType = spans.ErrorType(a.Message)
	}
	s.meters.Sent(ctx, o, time.Since(begin))
}
