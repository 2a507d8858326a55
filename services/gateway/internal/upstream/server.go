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

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A Server is one configured MCP server. It records its health for status pages and metrics. It is safe for concurrent
// use.
type Server struct {
	transport Transport
	meters    *meters.Meters
	// network is the name of the transport in metrics.
	network   string
	circuit   *circuitBreaker
	lastError atomic.Pointer[failure]
	waiting   *quota.Quota
}

// New returns a server that uses the transport t. Both arguments are required.
func New(t Transport, m *meters.Meters) (*Server, error) {
	if t == nil || m == nil {
		return nil, errors.New("upstream: a transport and meters are required")
	}
	return &Server{transport: t, meters: m, waiting: newParkedQuota(), network: spans.Transport(t.Kind()), circuit: &circuitBreaker{onOpen: func() { m.CountPause(context.Background()) }}}, nil
}

// Transport returns the kind of the server's transport, such as "http".
func (s *Server) Transport() string { return s.transport.Kind() }

// CanBeModern reports whether a server with this transport can support revision 2026-07-28.
func (s *Server) CanBeModern() bool {
	kind := s.transport.Kind()
	return kind != "grpc" && kind != KindHost
}

// ToolsChanged returns a channel that receives a value after the server has reported a change to its tool list. Only
// one goroutine may receive from the channel.
func (s *Server) ToolsChanged() <-chan struct{} { return s.transport.ToolsChanged() }

// InFlight returns the number of requests to the server that wait for an answer.
func (s *Server) InFlight() int32 {
	n, _ := s.circuit.state()
	return n
}

// CircuitOpenUntil returns the end of the current pause, or the zero time if there is no pause. During a pause, the
// gateway sends no requests to the server. A pause begins when too many consecutive connection attempts have failed.
func (s *Server) CircuitOpenUntil() time.Time {
	_, until := s.circuit.state()
	return until
}

// StartingSince returns the start time of the oldest process that is not ready yet. It returns the zero time if no
// process is starting.
func (s *Server) StartingSince() time.Time {
	if starter, ok := s.transport.(Starter); ok {
		return starter.StartingSince()
	}
	return time.Time{}
}

// ProgramNotice returns a warning for operators about the server's processes. The problem does not make calls fail.
// ProgramNotice returns "" if there is no warning.
func (s *Server) ProgramNotice() string {
	if starter, ok := s.transport.(Starter); ok {
		return starter.Notice()
	}
	return ""
}

// LastError returns the reason why the last request has no usable answer. It returns "" if the request has a usable
// answer. The text contains no part of a request. It contains content from the server only in the way that
// [CauseError.Text] allows.
func (s *Server) LastError() string {
	if last := s.lastError.Load(); last != nil {
		return last.text
	}
	return ""
}

// LastErrorInDetail is like LastError, but adds details that only operators of the home tenant may see, such as the
// output of a process.
func (s *Server) LastErrorInDetail() string {
	last := s.lastError.Load()
	if last == nil || last.detail == "" {
		return s.LastError()
	}
	return last.text + ": " + last.detail
}

// Open sends hello to open a session for a principal. The request belongs to the trace of ctx. Open returns the session
// and the server's answer. memory and the errors are described at [Session.SendRequest].
func (s *Server) Open(ctx context.Context, key principal.Key, hello GatewayMessage, memory *limits.Memory) (*Session, Answer, error) {
	req := hello.inTrace(ctx, memory)
	if req.Method() == mcp.MethodDiscover && !s.CanBeModern() {
		return nil, Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, ErrRevision)
	}
	var conn Conn
	answer, err := s.record(ctx, req.Method(), func() (answer Answer, err error) {
		conn, answer, err = s.transport.Open(ctx, key, req)
		return answer, err
	})
	if err != nil {
		return nil, answer, err
	}
	return &Session{server: s, conn: conn, version: versionOf(answer), since: time.Now()}, answer, nil
}

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

// Close ends all sessions and waits until the goroutines and processes of the transport have ended.
func (s *Server) Close() error { return s.transport.Close() }

// PublicReason returns the reason why a request has no usable answer. Every caller may see this text. Callers may not
// see err itself, because its message may quote the server.
func PublicReason(a Answer, err error) string { return reasonOf(a, err).text }

func reasonOf(a Answer, err error) failure {
	class := ClassOf(err).Error()
	if full := quota.Reason(err); full != "" {
		return failure{text: full}
	}
	for _, own := range []error{ErrCircuitOpen, ErrBusy, ErrOneSession} {
		if errors.Is(err, own) {
			return failure{text: own.Error()}
		}
	}
	if limit, ok := errors.AsType[*LimitError](err); ok {
		return failure{text: limit.Error()}
	}
	if errors.Is(err, limits.ErrMemory) {
		return failure{text: "no memory was left for its answer: other answers are sent or read too slowly, or too many came at once"}
	}
	if errors.Is(err, bodyreader.ErrSlow) {
		return failure{text: class + ": it sent a large answer too slowly"}
	}
	if errors.Is(err, ErrSessionLost) && !errors.Is(err, ErrSignedOut) {
		return failure{text: class + ": " + ErrSessionLost.Error() + " (HTTP status " + strconv.Itoa(a.Status) + "), so its client's session ends"}
	}
	if cause := CauseOf(err); cause != nil {
		return failure{text: cause.Text, detail: cause.Detail}
	}
	if wrong := AnswerFault(err); wrong != "" && a.Status < http.StatusMultipleChoices {
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

// failure is the reason why a request has no usable answer. Every caller may see text. Only operators of the home
// tenant may see detail.
type failure struct{ text, detail string }
