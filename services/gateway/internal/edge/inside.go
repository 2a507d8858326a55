package edge

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
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
	// Refusal is why nothing was done; nil if the server has answered.
	Refusal *refusal.Refusal
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
	c := httpserver.Caller{Principal: errand.Principal, Revoked: func() bool { return false }}
	if e.isAbsent(ctx, c, errand.Server) {
		return Done{}, ErrServer
	}
	if !e.visits.enter() {
		return Done{}, ErrStopping
	}
	defer e.visits.leave()
	ask := func(handle, message string) insideAnswer {
		x := e.newExchange(ctx, c, errand.Server, insideHeader(handle), dispatch.NewCallback(errand.Event))
		x.hold = errand.Hold
		return x.inside([]byte(message))
	}
	key := keyOf(c, errand.Server)
	lost := ""
	for range 2 {
		handle, known := e.insiders.Get(key)
		if !known || handle == lost { // it was idle for too long, or the gateway has restarted
			opened := ask("", insideHello)
			if handle = opened.Session; handle == "" {
				return opened.done(), nil
			}
			ask(handle, insideReady)
			if sess, done, err := e.deps.Sessions.Use(handle, key); err == nil {
				if sess.Ready.Load() { // else the server was not told that it is in use: the next call opens another
					e.insiders.Put(key, handle)
				}
				done()
			}
		}
		came := ask(handle, string(errand.Message))
		if came.Refusal == nil || came.Refusal.Code != commonv1.Code_CODE_SESSION_UNKNOWN {
			return came.done(), nil
		}
		lost = handle
	}
	return Done{}, ErrSession
}

// insideHeader is the head of a message in a session; of one that opens it if handle is empty.
func insideHeader(handle string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if handle != "" {
		h[mcp.HeaderSession] = []string{handle}
	}
	return h
}

// insideAnswer is the response to a caller inside the mesh.
type insideAnswer struct {
	dispatch.Response

	// whole is the body in one piece; nil if there is none, or if it is too large.
	whole    []byte
	tooLarge bool
}

// inside handles a message that no MCP client has sent: of a service of the mesh that speaks for a principal, of a
// task, or of the gateway itself for a list of many servers.
func (x *exchange) inside(message []byte) insideAnswer {
	x.finally = &x.steps
	var resp dispatch.Response
	defer func() { x.end(resp) }()
	resp = x.handle(bytes.NewReader(message), int64(len(message)))
	return collect(resp)
}

// collect copies the body of a response, because what it lies in is given back when the message is done.
func collect(resp dispatch.Response) insideAnswer {
	out := insideAnswer{Response: resp}
	out.whole, out.tooLarge = resp.Copy(dispatch.MaxCallback)
	out.Body = nil
	return out
}

func (a insideAnswer) done() Done {
	return Done{Answer: a.whole, TooLarge: a.tooLarge, Refusal: a.Refusal, ID: a.ID, Decision: a.Decision}
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
