package edge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const (
	headerLast = "Last-Event-Id"
	// methodListen is how a client's stream is called where it is counted.
	methodListen = "listen"
	// aliveEvery is how often a stream on which nothing comes says that it lives, so that a
	// client that has gone is noticed.
	aliveEvery = 25 * time.Second
)

// listen opens a session's stream, on which the server says what belongs to no request (MCP
// 2025-11-25, Transports, Listening for Messages from the Server). A session has one: a client
// that has lost it opens another, and may go on behind the last event that it got.
func (e *Edge) listen(w http.ResponseWriter, r *http.Request, c caller) {
	x := &exchange{Edge: e, caller: c, w: w, r: r, server: r.PathValue("server"), msg: new(gate.Message), received: time.Now()}
	if !x.isHub() && e.isAbsent(r.Context(), c, x.server) {
		e.reject(w, r, c, unknownServer(x.server))
		return
	}
	x.target = x.targets[x.server]
	id, ok := single(r.Header, headerSession)
	if !ok || r.Method != http.MethodGet || !x.newWriter().streams { // some clients try before they have a session, and go on without
		e.notAllowed(w, r)
		return
	}
	var err error
	if x.has, err = e.inFlight.Enter(c.principal, x.server); err != nil {
		e.reject(w, r, c, *tooMuchInFlight(err))
		return
	}
	defer x.has.Leave()
	sess, used, err := e.deps.Sessions.Use(id, c.key(x.server))
	if err != nil {
		e.reject(w, r, c, rejection{status: http.StatusNotFound, code: codeSession, rpc: mcp.CodeInvalidRequest})
		return
	}
	used = sync.OnceFunc(used)
	defer used()
	x.sess = sess
	if refused := e.deps.Pipeline.Pass(pipeline.Passing{Principal: c.principal, Server: x.server, Method: methodListen}); refused != nil {
		e.reject(w, r, c, rejection{status: http.StatusTooManyRequests, code: refused.Code, message: refused.Message, rpc: mcp.CodeInvalidRequest})
		return
	}
	after, resumes := single(r.Header, headerLast)
	if resumes && session.IsAnswers(after) {
		x.resumeAnswer(after, used)
		return
	}
	if len(r.Header[headerLast]) > 0 && (!resumes || !sess.Events.Given(after)) {
		e.reject(w, r, c, rejection{status: http.StatusBadRequest, code: commonv1.Code_CODE_HEADER_MISMATCH, rpc: mcp.CodeInvalidRequest, message: "Last-Event-ID is no event of this session's."})
		return
	}
	if !x.isHub() && !x.opensStream() { // the stream of all servers is asked about for each of them
		return
	}
	_, ctx, done, err := e.deps.Sessions.Listen(r.Context(), id, c.key(x.server), false)
	if err != nil { // it has just been closed
		e.reject(w, r, c, rejection{status: http.StatusNotFound, code: codeSession, rpc: mcp.CodeInvalidRequest})
		return
	}
	defer done()
	used() // who listens does not hold the session
	x.r = r.WithContext(ctx)
	if x.isHub() {
		x.hearHub(ctx)
		return
	}
	x.hear(ctx, after)
}

// opensStream reports whether something of the server is for the caller. Otherwise it has answered the request.
func (x *exchange) opensStream() bool {
	said, err := x.standing(x.r.Context())
	switch {
	case err != nil:
		x.reject(x.w, x.r, x.caller, unavailable(commonv1.Code_CODE_POLICY_UNAVAILABLE))
	case !said.Some:
		x.notAllowed(x.w, x.r)
	}
	return err == nil && said.Some
}

// resumeAnswer goes on with the stream of an answer behind the event with this id, until the answer. What
// was judged and said once is said again to the same session.
func (x *exchange) resumeAnswer(after string, used func()) {
	if x.stale {
		x.reject(x.w, x.r, x.caller, unavailable(commonv1.Code_CODE_POLICY_UNAVAILABLE))
		return
	}
	stream, next, ok := x.sess.Answers.After(after, string(reach.AppendCaller(nil, x.principal, "")))
	if !ok {
		x.reject(x.w, x.r, x.caller, rejection{status: http.StatusBadRequest, code: commonv1.Code_CODE_HEADER_MISMATCH, rpc: mcp.CodeInvalidRequest, message: "Last-Event-ID is no event of this session's that is remembered."})
		return
	}
	_, ctx, done, err := x.deps.Sessions.Listen(x.r.Context(), x.sess.ID, x.key(x.server), true)
	if err != nil { // it has just been closed, or has too many streams
		x.reject(x.w, x.r, x.caller, rejection{status: http.StatusNotFound, code: codeSession, rpc: mcp.CodeInvalidRequest})
		return
	}
	defer done()
	used() // who listens does not hold the session
	out := x.newWriter()
	ctx, cancel := context.WithCancel(ctx)
	var alive sync.WaitGroup
	defer func() { cancel(); alive.Wait() }()
	out.Hold()
	alive.Go(func() { out.keepAlive(ctx, cancel) })
	for ; ; next++ {
		id, message, err := stream.Next(ctx, next)
		if err != nil || message == nil || !x.at(stream.Server).mayHear(ctx) || out.event(id, message) != nil {
			break
		}
	}
	if stream.IsUnrecorded() {
		out.unrecorded()
	}
}

// event writes an event as it is.
func (o *writer) event(id string, message []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.write(upstream.Event{ID: id}, message)
}

// unavailable rejects what may work later.
func unavailable(code commonv1.Code) rejection {
	return rejection{status: http.StatusServiceUnavailable, code: code, rpc: mcp.CodeInvalidRequest}
}

// hear passes on what the server says until its stream ends, or the client's does.
func (x *exchange) hear(ctx context.Context, after string) {
	out := x.newWriter()
	defer out.asks.settle()
	ctx, cancel := context.WithCancel(ctx)
	var alive sync.WaitGroup
	defer func() { cancel(); alive.Wait() }()
	opened := false
	err := x.sess.Upstream.Listen(ctx, upstream.Listener{
		After: after, Room: &x.has.Answer,
		Opened: func() {
			opened = true
			out.Hold()
			alive.Go(func() { out.keepAlive(ctx, cancel) })
		},
		Event: func(event upstream.Event) error {
			if !x.mayHear(ctx) {
				return errStale
			}
			return out.pass(event)
		},
	})
	cancel()
	if opened {
		alive.Wait()
		out.asks.settle()
		out.Hold() // which gives the end of the stream, that net/http writes, its time
		return
	}
	x.deps.Log.DebugContext(ctx, "server has no stream", "server", x.server, "error", upstream.ForLog(err))
	if errors.Is(err, upstream.ErrNoStream) {
		x.notAllowed(x.w, x.r)
		return
	}
	x.reject(x.w, x.r, x.caller, unavailable(commonv1.Code_CODE_UPSTREAM_UNAVAILABLE))
}

// mayHear reports whether what the server says now is for the caller.
func (x *exchange) mayHear(ctx context.Context) bool {
	said, err := x.standing(ctx)
	return err == nil && said.Some && !x.revoked()
}

// keepAlive says now and then that a stream lives, until ctx ends. It ends the stream of a client
// that has gone, or whose token does not count any more.
func (o *writer) keepAlive(ctx context.Context, end context.CancelFunc) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if o.x.revoked() || o.comment() != nil {
				end()
				return
			}
		}
	}
}

// comment writes a comment, which no client takes for an event.
func (o *writer) comment() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.start()
	if _, err := io.WriteString(o.x.w, ": alive\n\n"); err != nil {
		return err
	}
	return http.NewResponseController(o.x.w).Flush()
}
