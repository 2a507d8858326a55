package edge

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/recent"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Errors of [Edge.Ask]. Compare with errors.Is.
var (
	// ErrServer: no server of that name is configured, or policy hides it from the caller.
	ErrServer = errors.New("no such server is configured, or policy hides it from the caller")
	// ErrStopping: the gateway stops.
	ErrStopping = errors.New("the gateway stops")
	// ErrSession: the session with the server was lost twice.
	ErrSession = errors.New("no session with the server could be kept")
)

const (
	// insideHello opens the sessions of callers inside the mesh, and insideReady puts them
	// into use.
	insideHello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"sluice-agent","version":"1"}}}`
	insideReady = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	// maxVisit is how much of an answer is kept, in bytes: beyond the shares of what is in
	// flight, until it is sent.
	maxVisit = 7 << 20
	// maxInsiders is of how many callers and servers the sessions are known.
	maxInsiders = 10_000
)

// Errand is a request of a principal for whom a service of the mesh speaks.
type Errand struct {
	// Principal is on whose behalf; never nil.
	Principal *identityv1.Principal
	// Server is where it goes, by its configured name.
	Server string
	// Message is the request as an MCP client would send it. It goes through the gate.
	Message []byte
	// Hold is for how long it is held open where people decide; nil: as configured.
	Hold *time.Duration
	// Event takes what the server sends before its answer, one message at a time.
	Event func(message []byte)
}

// Done is what came of an errand.
type Done struct {
	// Answer is the response that an MCP client would have got.
	Answer []byte
	// Refusal is why nothing was done; nil where the server has answered. Rejected says
	// that it breaks the rules for messages, so that policy was not asked.
	Refusal  *refusal.Refusal
	Rejected bool
	// TooLarge says that the server has answered, and with more than 7 MiB: Answer is empty.
	TooLarge bool
	// ID and Decision are those of a call on which policy has decided.
	ID       string
	Decision *policyv1.Decision
}

// Ask carries an errand out. It takes the way of an MCP client's message, from the caller's
// share of what may be in flight to the answer, in a session of the principal's own with
// the server. Errors: [ErrServer], [ErrStopping], [ErrSession].
func (e *Edge) Ask(ctx context.Context, errand Errand) (Done, error) {
	c := caller{principal: errand.Principal}
	if e.isAbsent(ctx, c, errand.Server) {
		return Done{}, ErrServer
	}
	if !e.visits.enter() {
		return Done{}, ErrStopping
	}
	defer e.visits.leave()
	key := c.key(errand.Server)
	lost := ""
	for range 2 {
		handle, known := e.insiders.Get(key)
		if !known || handle == lost { // it was idle for too long, or the gateway has restarted
			opened := e.visit(ctx, errand, "", []byte(insideHello))
			if handle = opened.header.Get(headerSession); handle == "" {
				return opened.done, nil
			}
			e.visit(ctx, errand, handle, []byte(insideReady))
			if sess, done, err := e.deps.Sessions.Use(handle, key); err == nil {
				if sess.Ready.Load() { // else the server was not told that it is in use: the next call opens another
					e.insiders.Put(key, handle)
				}
				done()
			}
		}
		came := e.visit(ctx, errand, handle, errand.Message)
		if came.done.Refusal == nil || came.done.Refusal.Code != codeSession {
			return came.done, nil
		}
		lost = handle
	}
	return Done{}, ErrSession
}

// visit sends one message in a session, as if it had come over HTTP.
func (e *Edge) visit(ctx context.Context, errand Errand, handle string, message []byte) *visitor {
	in := &visitor{errand: errand, header: make(http.Header)}
	head := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if handle != "" {
		head[headerSession] = []string{handle}
	}
	e.enter(ctx, caller{principal: errand.Principal, revoked: func() bool { return false }, inside: in}, errand.Server, head, message)
	return in
}

// enter sends a message of a caller inside the mesh to a server, as if it had come over HTTP.
func (e *Edge) enter(ctx context.Context, by caller, server string, head http.Header, message []byte) {
	r := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Path: "/mcp/" + server}, Header: head,
		Body: io.NopCloser(bytes.NewReader(message)), ContentLength: int64(len(message)),
	}).WithContext(ctx)
	r.SetPathValue("server", server)
	e.post(by.inside, r, by)
	by.inside.take()
}

// visitor is a caller inside the mesh while its message is worked on: a service of the mesh that speaks
// for somebody, or who asks about a task, whose call is made. It takes the answer in
// place of a connection: as one text, or as an event stream, of which each event ends with
// a flush.
type visitor struct {
	errand Errand
	header http.Header
	// resumes is the approval that a task has waited for; empty for none.
	resumes string
	text    []byte
	large   bool
	done    Done
}

// Header implements http.ResponseWriter.
func (v *visitor) Header() http.Header { return v.header }

// WriteHeader implements http.ResponseWriter. What a status says is known otherwise.
func (*visitor) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (v *visitor) Write(b []byte) (int, error) {
	if v.large = v.large || len(v.text)+len(b) > maxVisit; v.large {
		v.text = nil
	} else {
		v.text = append(v.text, b...)
	}
	return len(b), nil
}

// Flush implements http.Flusher: an event is whole.
func (v *visitor) Flush() { v.take() }

// take takes what was written as the answer, or as a message before it.
func (v *visitor) take() {
	text := bytes.TrimSpace(bytes.TrimPrefix(v.text, []byte("event: message\ndata: ")))
	v.text = nil
	if v.large { // of events only what a server says last is its answer
		v.large, v.done.TooLarge, v.done.Answer = false, true, nil
		return
	}
	if len(text) == 0 {
		return
	}
	if parsed, err := gate.ReadAnswer(text, gate.AnswerLimits()); err == nil && parsed.Kind != gate.Response {
		if v.errand.Event != nil {
			v.errand.Event(text)
		}
		return
	}
	v.done.Answer, v.done.TooLarge = text, false
}

// decided notes what came of a call.
func (v *visitor) decided(result pipeline.Result) {
	if v != nil {
		v.done.ID, v.done.Decision = result.ID, result.Decision
	}
}

// refused notes why nothing was done.
func (v *visitor) refused(why *refusal.Refusal, rejected bool) {
	if v != nil {
		v.done.Refusal, v.done.Rejected = why, rejected
	}
}

// hold is for how long a call is held open where people decide; nil: as configured.
func (v *visitor) hold() *time.Duration {
	if v == nil {
		return nil
	}
	return v.errand.Hold
}

// resumed is the approval that a task has waited for; empty for none.
func (v *visitor) resumed() string {
	if v == nil {
		return ""
	}
	return v.resumes
}

func newInsiders() *recent.Recent[session.Key, string] {
	return recent.New[session.Key](maxInsiders, maxInsiders, func(string) int { return 1 })
}

// visits are the errands on their way. The zero value has none. It is safe for concurrent
// use.
type visits struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

// enter counts an errand, unless the gateway stops.
func (v *visits) enter() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	v.open.Add(1)
	return true
}

func (v *visits) leave() { v.open.Done() }

// Drain takes no more errands, and waits until those on their way have ended, or ctx has.
func (e *Edge) Drain(ctx context.Context) {
	e.visits.mu.Lock()
	e.visits.closed = true
	e.visits.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		e.visits.open.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}
