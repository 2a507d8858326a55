package edge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// rejection is an identified caller's request that ends before policy is asked.
type rejection struct {
	status int
	code   commonv1.Code
	// rpc is the JSON-RPC error code.
	rpc int
	// message adds to what the code says; may be empty.
	message string
	// id is the raw id of the request; nil where it could not be read.
	id []byte
	// requested is the revision that is not supported; empty elsewhere. Then supported are those
	// that are.
	requested string
	supported []string
	// requires is the extension that the client has to have; empty elsewhere.
	requires string
	// size, method and name are what the record says of the request.
	size         int
	method, name string
}

// reject refuses a request of an identified caller, on record.
func (e *Edge) reject(w http.ResponseWriter, r *http.Request, c caller, why rejection) {
	spans.Error(trace.SpanFromContext(r.Context()), why.rpc)
	refused := &refusal.Refusal{Code: why.code, Message: why.message}
	refused.ID = e.deps.Pipeline.RecordRefusal(r.Context(), attempt.Unjudged{
		Principal: c.principal, Server: spans.Clip(r.PathValue("server")), Method: why.method, Name: why.name,
		Code: why.code, Message: why.message, Bytes: why.size,
	})
	c.inside.refused(refused, true)
	if why.requested != "" {
		body, err := refused.VersionError(why.id, why.requested, why.supported)
		e.writeJSON(w, r, why.status, body, err)
		return
	}
	if why.requires != "" {
		body, err := refused.CapabilityError(why.id, why.requires)
		e.writeJSON(w, r, why.status, body, err)
		return
	}
	e.writeErrorCode(w, r, why.status, refused, why.id, why.rpc)
}

// rejectMessage rejects the message at hand.
func (x *exchange) rejectMessage(why rejection) {
	x.failure = strconv.Itoa(why.rpc)
	x.reject(x.w, x.r, x.caller, why)
}

// writeError answers with a JSON-RPC error that has a refusal in its data.
func (e *Edge) writeError(w http.ResponseWriter, r *http.Request, status int, refused *refusal.Refusal, id []byte) {
	e.writeErrorCode(w, r, status, refused, id, mcp.CodeInvalidRequest)
}

func (e *Edge) writeErrorCode(w http.ResponseWriter, r *http.Request, status int, refused *refusal.Refusal, id []byte, code int) {
	body, err := refused.Error(id, code)
	e.writeJSON(w, r, status, body, err)
}

func (e *Edge) writeJSON(w http.ResponseWriter, r *http.Request, status int, body []byte, err error) {
	if err != nil {
		e.deps.Log.ErrorContext(r.Context(), "answer could not be written", "error", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}

// writer answers one request: with JSON, or with an event stream once something
// comes before the answer. It is safe for concurrent use.
type writer struct {
	x *exchange
	// streams says whether the client reads event streams, and prefers that it names them
	// before JSON.
	streams, prefers bool
	asks             asks
	// gone ends when the client has gone, or given its request up.
	gone context.Context //nolint:containedctx // the client's own

	// wants is what a subscription is of; nil elsewhere.
	wants *upstream.Wanted
	// status is that of an answer which is no stream; 0 for 200.
	status int

	// kept is the stream as its client may go on with it; nil where it may not.
	kept *session.Answering
	// last says that what is written is the answer, away that the client is to come for it, and
	// isUnrecorded that its outcome is not on record.
	last, away, isUnrecorded bool

	*line
	own line // where no other writer writes on it
}

// line is where an answer is written, one message after the other: a stream of many servers has
// many writers. The zero value is one on which nothing was sent.
type line struct {
	mu      sync.Mutex
	started bool
}

func (x *exchange) newWriter() *writer {
	before, _, streams := strings.Cut(strings.Join(x.r.Header["Accept"], ","), "text/event-stream")
	o := &writer{x: x, gone: x.r.Context(), streams: streams, prefers: streams && !strings.Contains(before, "json")}
	o.line = &o.own
	return o
}

// Event passes a message on that a server sent before its answer.
func (o *writer) Event(raw []byte) { _ = o.pass(upstream.Event{Message: raw}) } // a client that has gone needs no events

// pass passes on what a server said, as far as it is for the client. The error says that nobody
// can get it.
func (o *writer) pass(event upstream.Event) error {
	x := o.x
	m, clean, err := x.said(event.Message)
	switch {
	case err != nil:
		return err
	case m == nil:
	case m.Kind == gate.Request:
		o.asked(m)
	case m.Method == mcp.MethodCancelled:
		x.sess.Asked.TakeBack(m.RequestID.Of(m.Raw)) // the client hears of it from who asked it
	case o.wants != nil && x.hub != nil && !gate.SameID(m.Subscription.Of(m.Raw), x.id()): // it would be heard as another server's
	case x.hears(m.Method) && concerns(m, o.wants) && x.hearsOf(m), x.carriesFrom(m):
		return o.sendEvent(event, clean)
	}
	return o.sendEvent(event, nil)
}

// said reads what a server said, in a turn of the caller's where it is large, and how it is to be
// sent on. It is nil where nothing was said.
func (x *exchange) said(raw []byte) (*gate.Answer, [][]byte, error) {
	if raw == nil {
		return nil, nil, nil
	}
	end, err := x.has.Answer.TurnFor(x.whole(x.r.Context()), len(raw))
	if err != nil {
		return nil, nil, err // nobody waits for it any more, or too much of the caller's does
	}
	defer end()
	m, err := gate.ReadAnswer(raw, gate.AnswerLimits())
	if err != nil {
		return nil, nil, nil // the upstream reader let it through, so this can't be; nothing is lost by caution
	}
	edits, err := x.joined(m, m.Method, m.Clean(nil))
	var clean [][]byte
	if err == nil {
		clean, err = gate.Plan(raw, edits...)
	}
	if err != nil {
		x.deps.Log.ErrorContext(x.r.Context(), "event could not be cleaned", "error", err)
		return nil, nil, nil
	}
	return m, clean, nil
}

// hears reports whether a server's notification of the protocol's is for the client: progress and what begins
// a subscription are, and of the others those that policy does not deny, nor the method that they serve.
func (x *exchange) hears(notification string) bool {
	if notification == mcp.MethodProgress || notification == mcp.MethodAcknowledged && x.hub == nil { // who hears of many was told once
		return true
	}
	said, err := x.standing(x.whole(x.r.Context()))
	if err != nil || !slices.Contains(said.Methods, notification) {
		return false
	}
	switch method := mcp.Tells(notification); method {
	case "":
		return notification == mcp.MethodMessage
	case mcp.MethodToolsList:
		return x.hub == nil // whose tools are those of the gateway's own lists
	default:
		return slices.Contains(said.Methods, method)
	}
}

// send sends a message before the answer. The error says that nobody can get it.
func (o *writer) send(message ...[]byte) error { return o.sendEvent(upstream.Event{}, message) }

// sendEvent sends a message as this event. What has neither a message nor an id is none.
func (o *writer) sendEvent(event upstream.Event, message [][]byte) error {
	if o.x.hub != nil { // events of many servers have no order to go on from
		event.ID, event.Retry = "", ""
	}
	if session.IsAnswers(event.ID) { // which would be taken for one of the gateway's own
		event.ID = ""
	}
	if message == nil && event.ID == "" && event.Retry == "" {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.streams {
		return errNoStream
	}
	o.start()
	if event.ID != "" {
		o.x.sess.Events.Give(event.ID)
	}
	return o.write(event, message...)
}

// errNoStream means that the client reads no event stream.
var errNoStream = errors.New("the client reads no event stream")

// Hold sends the head of an event stream, so that who is held knows that it is.
func (o *writer) Hold() {
	if !o.streams {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.start()
	_ = http.NewResponseController(o.x.w).Flush() // a client that has gone needs no answer
}

// hasStarted reports whether an event stream has begun.
func (o *writer) hasStarted() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.started
}

// Progress tells a client that asks for progress that its call still waits for a
// person. Progress must rise, and what the server tells later begins again: so this
// stays far below.
func (o *writer) Progress(n int) {
	token := o.x.msg.Meta.ProgressToken
	if !o.streams || !token.Present() {
		return
	}
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%s,"message":"waiting for a person's approval"}}`,
		token.Of(o.x.msg.Raw), strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64))
	_ = o.send(message) // a client that has gone needs no answer
}

// start sends the head of an event stream.
func (o *writer) start() {
	if o.started {
		return
	}
	o.started = true
	h := o.x.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	o.x.w.WriteHeader(http.StatusOK)
	if of := o.x.resumable(); of != nil {
		o.kept = of.Answers.Begin(o.x.server, string(reach.AppendCaller(nil, o.x.principal, "")), o.x.remembered.Open(&o.x.has.Of))
	}
	if o.kept != nil {
		_, _ = io.WriteString(o.x.w, "id: "+o.kept.ID()+"\nretry: "+resumeRetry+"\ndata: \n\n") // a client that has gone comes back, or needs none
	}
}

// whole is a context that does not end with the client, where that can come back for what is made in it.
func (x *exchange) whole(ctx context.Context) context.Context {
	if x.resumable() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// leaves ends the stream before the answer, as the server has done that wants its client to come back:
// clients of this revision do, and get the answer then. Where one can't, it gets its answer at once.
func (o *writer) leaves() {
	o.Hold()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = o.kept != nil
}

// resumeRetry is how soon a client that has lost a stream is to come back, in ms.
const resumeRetry = "1000"

// resumable is the session whose client can go on with the stream of its answer; nil where there is none.
// Clients of older revisions take the event by which such a stream begins for a broken one.
func (x *exchange) resumable() *session.Session {
	if x.r.Method != http.MethodPost || x.sess == nil || x.modern != nil || x.inside != nil || x.sess.Version != mcp.Supported()[0] {
		return nil
	}
	return cmp.Or(x.hub, x.sess)
}

// write sends one event, in which every line break of the message is a space: it can
// only stand between tokens, where that means the same, and so no message can break
// out of its event. Where a client can come back for it, it is remembered.
func (o *writer) write(event upstream.Event, parts ...[]byte) error {
	if o.kept != nil {
		id, taken, kept := o.kept.Add(parts...)
		if o.last && taken && !kept { // its client waits elsewhere, and is to have an end
			lost, err := (&refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the answer is too large to be kept for a client that has lost its stream."}).Error(o.x.id(), mcp.CodeInternal)
			if err == nil {
				o.kept.Add(lost)
			}
		}
		if o.last {
			o.kept.End(o.isUnrecorded)
		}
		if taken || o.away && kept {
			return nil
		}
		event.ID = id
	}
	to := o.x.w
	head := "data: "
	if len(parts) > 0 {
		head = "event: message\n" + head
	}
	if event.Retry != "" {
		head = "retry: " + event.Retry + "\n" + head
	}
	if event.ID != "" {
		head = "id: " + event.ID + "\n" + head
	}
	_, err := io.WriteString(to, head) //nolint:gosec // ids are the gateway's own, or were given to this session
	for _, part := range parts {
		if err == nil {
			err = writeOnLine(to, part)
		}
	}
	if err == nil {
		_, err = io.WriteString(to, "\n\n")
	}
	return errors.Join(err, http.NewResponseController(to).Flush())
}

// writeOnLine writes a part of a message without its line breaks.
func writeOnLine(to io.Writer, part []byte) error {
	if bytes.IndexByte(part, '\n') < 0 && bytes.IndexByte(part, '\r') < 0 {
		_, err := to.Write(part)
		return err
	}
	for piece := range slices.Chunk(part, 4<<10) {
		piece = bytes.ReplaceAll(bytes.ReplaceAll(piece, []byte("\n"), []byte(" ")), []byte("\r"), []byte(" "))
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// edited sends a server's answer with the edits made, those of [gate.Answer.Clean]
// among them.
func (o *writer) edited(ctx context.Context, a *gate.Answer, edits []gate.Edit) {
	edits, err := o.x.joined(a, o.x.msg.Method, edits)
	var body [][]byte
	if err == nil {
		body, err = gate.Plan(a.Raw, edits...)
	}
	if err != nil {
		o.x.deps.Log.ErrorContext(ctx, "answer could not be cleaned", "error", err)
		o.fail()
		return
	}
	o.message(body...)
}

// message sends the answer itself. What the server has asked of the client has ended before.
func (o *writer) message(parts ...[]byte) {
	o.asks.settle()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.status = cmp.Or(o.status, http.StatusOK); o.prefers && o.status == http.StatusOK {
		o.start()
	}
	if o.started {
		o.last = true
		_ = o.write(upstream.Event{}, parts...) // a client that has gone comes back, or needs no answer
		return
	}
	o.x.w.Header().Set("Content-Type", "application/json")
	o.x.w.WriteHeader(o.status)
	for _, part := range parts {
		if _, err := o.x.w.Write(part); err != nil {
			return // a client that has gone needs no answer
		}
	}
}

// headerOutcome marks an answer whose outcome is not on record.
const headerOutcome = "Sluice-Outcome"

// unrecorded marks the answer to a call whose outcome is not on record yet: in
// its head, or behind a stream that has begun.
func (o *writer) unrecorded() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isUnrecorded = true
	name := headerOutcome
	if o.started {
		name = http.TrailerPrefix + name
	}
	o.x.w.Header().Set(name, "unrecorded")
}

// fail ends a request that can't be answered.
func (o *writer) fail() {
	o.asks.settle()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.started {
		o.x.w.WriteHeader(http.StatusInternalServerError)
	}
	if o.kept != nil {
		o.kept.End(false)
	}
}
