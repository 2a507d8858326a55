package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A Session is one session with a server. [Server.Open] and [Server.OpenLater] create sessions. It is safe for
// concurrent use.
type Session struct {
	server *Server
	// open is called by the first request to open the session. It is nil if [Server.Open] created the session.
	open func(context.Context, *limits.Memory) (*Session, error)
	// whenOpen is called when the session has been opened. It may be nil.
	whenOpen func()
	// opening is a lock for opening the session. It is a channel, so that other requests can stop waiting for the lock
	// when their contexts are done.
	opening chan struct{}

	mu   sync.Mutex
	conn Conn // nil until the session is open
	// version is the negotiated protocol revision. since is the time at which the session was opened.
	version string
	since   time.Time
	// lost is true if the server no longer knows the session, or if its account at the server has changed.
	lost bool
	// err is the reason why the session can never be opened, or nil. It is always nil for a session that [Server.Open]
	// created, because the transport detects whether such a session is closed.
	err error
}

// OpenLater returns a session that is opened by its first request. The request calls open with the memory budget for
// the answer. If open fails, the next request tries again. Notifications are dropped before the session is open. When
// the session has been opened, whenOpen is called if it is not nil.
func (s *Server) OpenLater(open func(context.Context, *limits.Memory) (*Session, error), whenOpen func()) *Session {
	return &Session{server: s, open: open, whenOpen: whenOpen, opening: make(chan struct{}, 1)}
}

// Forward sends a client's request that the policy has allowed, and returns the server's answer. [Conn] describes the
// answer and the errors. For clients' requests, only package pipeline calls Forward.
func (s *Session) Forward(ctx context.Context, req Request, events func(message []byte)) (Answer, error) {
	return s.request(ctx, req, events)
}

// SendRequest sends a request from the gateway itself and returns the server's answer. The request belongs to the trace
// of ctx. [Conn] describes the answer and the errors. The size of the answer is charged to memory before the answer is
// read. If memory is nil, only small answers are accepted.
func (s *Session) SendRequest(ctx context.Context, own GatewayMessage, memory *limits.Memory, events func(message []byte)) (Answer, error) {
	return s.request(ctx, own.inTrace(ctx, memory), events)
}

func (s *Session) request(ctx context.Context, req Request, events func([]byte)) (Answer, error) {
	conn, err := s.current()
	if conn == nil && err == nil {
		conn, err = s.ensureOpen(ctx, req.Room)
	}
	if errors.Is(err, ErrCircuitOpen) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, ErrCircuitOpen)
	}
	if errors.Is(err, quota.ErrFull) || errors.Is(err, ErrBusy) {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, err)
	}
	if err != nil { // the session could not be opened, so this request was not sent
		return Answer{}, WithClass(ErrNeverSent, "open the session", err)
	}
	answer, err := s.server.record(ctx, req.Method(), func() (Answer, error) { return conn.Request(ctx, req, events) })
	s.recordLoss(err)
	return answer, err
}

// recordLoss records that the session can no longer be used, if the error of a message says so.
func (s *Session) recordLoss(err error) {
	if errors.Is(err, ErrSessionLost) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lost = true
	}
}

// IsLost reports whether the server has lost the session, or its account at the server has changed. The client must
// then open another session.
func (s *Session) IsLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// SendNotification sends a notification from the gateway itself, or the gateway's response to a server's request. The
// message belongs to the trace of ctx. Before the session is open, SendNotification does nothing. It returns the same
// errors as [Session.SendRequest].
func (s *Session) SendNotification(ctx context.Context, own GatewayMessage) error {
	return s.notify(ctx, own.inTrace(ctx, nil))
}

// Reply sends a client's response to an allowed request from the server, or a client's progress notification for such a
// request. It returns the same errors as [Session.SendRequest].
func (s *Session) Reply(ctx context.Context, m *jsonrpc.Message) error {
	if m.Kind != jsonrpc.Response && m.Method != mcp.MethodProgress {
		return fmt.Errorf("%w: the message is not a reply", ErrNeverSent)
	}
	return s.notify(ctx, Request{Message: m})
}

// Notify sends a notification that the policy has allowed. It returns the same errors as [Session.SendRequest].
func (s *Session) Notify(ctx context.Context, req Request) error {
	if req.Kind() != jsonrpc.Notification {
		return fmt.Errorf("%w: the message is not a notification", ErrNeverSent)
	}
	if conn, err := s.current(); err == nil && conn == nil {
		return fmt.Errorf("%w: the session is not open yet", ErrNeverSent)
	}
	return s.notify(ctx, req)
}

func (s *Session) notify(ctx context.Context, req Request) error {
	conn, err := s.current()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNeverSent, err)
	case conn == nil:
		return nil
	}
	begin := time.Now()
	err = conn.Notify(ctx, req)
	s.recordLoss(err)
	if req.Kind() == jsonrpc.Notification {
		s.server.measure(ctx, req.Method(), Answer{}, err, begin)
	}
	return err
}

// Listen waits for messages that the server sends outside requests. The listener receives these messages, as described
// at [Conn]. Before the session is open, there is no stream.
func (s *Session) Listen(ctx context.Context, to Listener) error {
	conn, err := s.current()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	case conn == nil:
		return ErrNoStream
	default:
		err = conn.Listen(ctx, to)
		s.recordLoss(err)
		return err
	}
}

// Close ends the session with the server. Unless the transport is Streamable HTTP, it also ends all requests in flight
// in the session.
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
		s.server.meters.RecordServerSession(ctx, version, s.server.network, time.Since(since))
	}
	return conn.Close(ctx)
}

// IsOpen reports whether the session is open.
func (s *Session) IsOpen() bool {
	conn, err := s.current()
	return conn != nil && err == nil
}

// current returns the connection, or nil if the session is not open yet. It returns an error if the session can never
// be opened.
func (s *Session) current() (Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn, s.err
}

// ensureOpen opens the session and returns its connection. If another request is already opening the session,
// ensureOpen waits for that request.
func (s *Session) ensureOpen(ctx context.Context, of *limits.Memory) (Conn, error) {
	select {
	case s.opening <- struct{}{}:
		defer func() { <-s.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if conn, err := s.current(); conn != nil || err != nil {
		return conn, err
	}
	memory := of.Sibling()
	defer memory.Close()
	opened, err := s.open(ctx, memory)
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

// record runs request. It records the outcome in the metrics, in the circuit breaker and as the server's last error.
func (s *Server) record(ctx context.Context, method string, request func() (Answer, error)) (Answer, error) {
	begin := time.Now()
	answer, err := s.circuit.do(request)
	s.measure(ctx, method, answer, err, begin)
	switch {
	case err == nil:
		s.lastError.Store(nil)
	case errors.Is(context.Cause(ctx), context.Canceled), isNotServerFault(err):
	default:
		s.lastError.Store(new(reasonOf(answer, err)))
	}
	return answer, err
}

// isNotServerFault reports whether an error is not the server's fault. This is the case if the gateway has not sent the
// request, or if the gateway or the client has ended it. It is also the case if the error depends on the account of one
// person, or if the server supports only another revision.
func isNotServerFault(err error) bool {
	return isOfPerson(err) || slices.ContainsFunc([]error{ErrCancelled, ErrClosed, ErrShutdown, ErrRevision, ErrCircuitOpen, ErrBusy, ErrWithheld, ErrSignedOut, limits.ErrMemory, quota.ErrFull}, func(own error) bool { return errors.Is(err, own) })
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
	s.meters.RecordSent(ctx, o, time.Since(begin))
}
