package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// clientTimeout is how long a client and its user may take to respond to a request from a server.
const clientTimeout = 10 * time.Minute

// serverRequests contains the unanswered requests that a server has sent to a client on one stream. The zero value is
// empty. Only the goroutine that reads the stream may call its methods.
type serverRequests struct {
	// ended is closed when the gateway stops waiting for the responses to these requests. It is nil before the first
	// request.
	ended   chan struct{}
	running sync.WaitGroup
}

func (a *serverRequests) start(run func()) {
	if a.ended == nil {
		a.ended = make(chan struct{})
	}
	a.running.Go(run)
}

func (a *serverRequests) cancelAll() {
	if a.ended == nil {
		return
	}
	close(a.ended)
	a.running.Wait()
	a.ended = nil
}

// Settle cancels the server's unanswered requests and waits until the goroutines that handle them have returned.
func (o *Relay) Settle() { o.serverRequests.cancelAll() }

type serverRequest struct {
	relay    *Relay
	pending  *session.ClientRequest
	memory   *limits.Memory
	id, raw  []byte
	method   string
	token    []byte // the progress token as raw JSON; nil if the request has none
	received time.Time
	// waited is how long the gateway has waited for the client's response.
	waited time.Duration
}

// handleServerRequest starts a goroutine that handles a request from the server. If the policy and the client's
// capabilities allow the request, the client receives it, and the server receives the client's response.
func (o *Relay) handleServerRequest(m *jsonrpc.Answer) {
	x := o.exchange
	a := &serverRequest{relay: o, memory: x.Slot.Answer.Sibling(), id: bytes.Clone(m.ID.Of(m.Raw)), raw: m.Raw, method: m.Method, received: time.Now()}
	var err error
	a.pending, err = x.Session.ClientRequests.AddFromServer(a.id)
	switch {
	case errors.Is(err, session.ErrRequestFlood):
		a.record(x.ClientCtx, commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
		return
	case err != nil:
		a.refuse(x.ClientCtx, commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
		return
	case len(m.Raw) > x.Deps.Limits.Bytes || !a.memory.Add(len(m.Raw)):
		a.pending.Close()
		a.refuse(x.ClientCtx, commonv1.Code_CODE_BODY_TOO_LARGE, "it is too large, or too many messages wait to be read.")
		return
	}
	a.raw = bytes.Clone(m.Raw) // the buffer of m is reused for the next message
	o.serverRequests.start(a.run)
}

func (a *serverRequest) run() {
	defer a.memory.Close()
	defer a.pending.Close()
	x := a.relay.exchange
	ctx := context.WithoutCancel(x.ClientCtx)
	defer func() {
		if panicked := recover(); panicked != nil { // in this goroutine, net/http does not recover panics
			x.Deps.Panicked(ctx, panicked)
		}
	}()
	m, err := a.read(ctx)
	if own, is := errors.AsType[*jsonrpc.Error](err); is {
		a.refuse(ctx, own.Code, own.Detail+".")
		return
	}
	if err != nil { // no time slice was available for parsing
		a.refuse(ctx, commonv1.Code_CODE_ABUSE_LIMITED, err.Error()+".")
		return
	}
	ctx, span := spans.Serve(ctx, x.Deps.Tracer, m, spans.Client(m, "", x.Deps.Propagator), false)
	defer span.End()
	spans.Message(span, m, x.Place())
	failure := ""
	defer func() {
		o := meters.Operation{Method: m.Method, ErrorType: failure, Transport: x.Place().Transport}
		x.Deps.Meters.RecordServed(ctx, o, time.Since(a.received), a.waited)
	}()
	if !x.Sink.HasClient() || !x.AsksOnStreams || mcp.AsksServer(m.Method) {
		failure = spans.Error(span, mcp.CodeMethodUnknown)
		a.refuse(ctx, commonv1.Code_CODE_METHOD_DENIED, "the client accepts no such request here.")
		return
	}
	if why := x.Offer.Check(m); why != nil {
		code, text := errorForInvalid(why, a.record(ctx, why.Code, why.Detail+"."))
		failure = spans.Error(span, code)
		a.answerError(ctx, code, text)
		return
	}
	a.token = m.Meta.ProgressToken.Of(m.Raw)
	result := x.Deps.Pipeline.Do(ctx, &attempt.Call{
		Principal: x.ActingPrincipal(), Stale: x.Stale || x.Revoked(ctx), Credential: x.Credential,
		Server: x.ServerName, Message: m, Received: a.received, Timeout: clientTimeout, FromServer: true,
		Transport: "http", Version: x.Session.Version, Client: x.Session.Client.Name,
		Upstream: a, Memory: a.memory, Identity: x.Server.Identity,
	})
	if result.Refusal != nil {
		failure = spans.Error(span, a.answerRefusal(ctx, result.Refusal))
		return
	}
	failure = spans.Answer(span, result.Answer)
	a.reply(ctx, result.Answer)
}

// read parses the server's request as strictly as a client's request.
func (a *serverRequest) read(ctx context.Context) (*jsonrpc.Message, error) {
	end, err := a.memory.TimesliceFor(ctx, len(a.raw))
	if err != nil {
		return nil, err
	}
	defer end()
	return jsonrpc.Parse(a.raw, a.relay.exchange.Deps.Limits)
}

// Forward implements [attempt.Forwarder]. It sends the server's request to the client and waits for the response.
// During this time, the timeout of the client's own request to the server is paused.
func (a *serverRequest) Forward(ctx context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	x := a.relay.exchange
	pause := x.Deadline.Pause
	if x.Message.Kind == jsonrpc.Invalid { // the request has arrived on the session's stream, so it might belong to any call
		pause = x.Session.Calls.Pause
	}
	defer pause()()
	begin := time.Now()
	defer func() { a.waited = time.Since(begin) }()
	a.pending.SetProgressToken(a.token)
	if err := req.MayBegin(); err != nil {
		return upstream.Answer{}, err
	}
	if err := a.send(req); err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w: %w", upstream.ErrNeverSent, attempt.ErrClient, err)
	}
	select {
	case m := <-a.pending.Response():
		return a.acceptResponse(ctx, m)
	case <-a.pending.Cancelled():
	case <-a.relay.requestCtx.Done():
	case <-a.relay.serverRequests.ended:
	case <-ctx.Done():
	}
	select {
	case m := <-a.pending.Response(): // a response that arrives at the same time still counts
		return a.acceptResponse(ctx, m)
	default:
	}
	a.relay.withdraw(a.id)
	class := upstream.ErrNoAnswer
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		class = upstream.ErrTimeout
	}
	return upstream.Answer{}, fmt.Errorf("%w: %w", class, attempt.ErrClient)
}

func (a *serverRequest) send(req upstream.Request) error {
	edits, err := a.relay.exchange.Addressing.RenameRequest(req)
	if err != nil {
		return err
	}
	body, err := jsonrpc.PlanEdits(req.Body(), edits...)
	if err != nil {
		return err
	}
	return a.relay.SendMessage(body...)
}

// acceptResponse converts the client's response into the message for the server.
func (a *serverRequest) acceptResponse(ctx context.Context, m *jsonrpc.Message) (upstream.Answer, error) {
	answer, err := a.parseResponse(ctx, m)
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w: %w", upstream.ErrNoAnswer, attempt.ErrClient, err)
	}
	return upstream.Answer{Message: answer}, nil
}

func (a *serverRequest) parseResponse(ctx context.Context, m *jsonrpc.Message) (*jsonrpc.Answer, error) {
	if !a.memory.Add(len(m.Raw)) {
		return nil, limits.ErrMemory
	}
	end, err := a.memory.TimesliceFor(ctx, len(m.Raw))
	if err != nil {
		return nil, err
	}
	defer end()
	answer, err := jsonrpc.ReadAnswer(m.Raw, jsonrpc.AnswerLimits())
	if err != nil {
		return nil, err
	}
	return answer.WithID(a.id)
}

func (a *serverRequest) reply(ctx context.Context, answer *jsonrpc.Answer) {
	x := a.relay.exchange
	ctx, cancel := context.WithTimeout(ctx, NotifyTimeout)
	defer cancel()
	x.logUnsent(ctx, a.method, x.Session.Upstream.Reply(ctx, &jsonrpc.Message{Raw: answer.Raw, Kind: answer.Kind, ID: answer.ID}))
}

// refuse records the refusal of a request that the policy service has not evaluated, and sends the refusal to the
// server.
func (a *serverRequest) refuse(ctx context.Context, code commonv1.Code, why string) {
	a.answerRefusal(ctx, a.record(ctx, code, why))
}

func (a *serverRequest) record(ctx context.Context, code commonv1.Code, why string) *refusal.Refusal {
	x := a.relay.exchange
	refused := &refusal.Refusal{Code: code, Message: why}
	refused.ID = x.Deps.Pipeline.RecordRefusal(ctx, attempt.RefusedRequest{
		Principal: x.ActingPrincipal(), Server: x.ServerName, Method: a.method, Code: code, Message: why, Bytes: len(a.raw), FromServer: true,
	})
	return refused
}

// answerRefusal sends an error to the server because its request was refused, and returns the JSON-RPC error code. If
// the client has not responded, the error says only this. Otherwise, the error contains the code of the refusal and the
// id of the decision. An operator can find the reason with this id.
func (a *serverRequest) answerRefusal(ctx context.Context, why *refusal.Refusal) int {
	code, text := errorForRefusal(why)
	a.answerError(ctx, code, text)
	return code
}

func errorForRefusal(why *refusal.Refusal) (code int, text string) {
	switch why.Code { //nolint:exhaustive // all other codes mean that the gateway has refused the request
	case commonv1.Code_CODE_UPSTREAM_TIMEOUT, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, commonv1.Code_CODE_OUTCOME_UNKNOWN:
		return mcp.CodeInternal, "The client gave no answer."
	case commonv1.Code_CODE_METHOD_DENIED:
		return mcp.CodeMethodUnknown, upstream.NoClientForRequest + " Decision " + why.ID + "."
	default:
		return mcp.CodeRefused, "The gateway does not forward this request: " + enum.NameOrEmpty(why.Code) + ", decision " + why.ID + "."
	}
}

// errorForInvalid returns the JSON-RPC error for a request that the server may not send. The message reveals only what
// follows from the capabilities that the gateway has declared.
func errorForInvalid(why *question.Error, refused *refusal.Refusal) (code int, text string) {
	if why.Method {
		return errorForRefusal(refused)
	}
	return mcp.CodeInvalidParams, "The gateway does not forward this request: " + why.Detail + ". Decision " + refused.ID + "."
}

func (a *serverRequest) answerError(ctx context.Context, code int, text string) {
	x := a.relay.exchange
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), NotifyTimeout)
	defer cancel()
	x.logUnsent(ctx, a.method, x.Session.Upstream.SendNotification(ctx, upstream.Refused(a.id, code, text)))
}

func (x *Exchange) logUnsent(ctx context.Context, method string, err error) {
	if err == nil {
		return
	}
	x.Deps.Log.WarnContext(ctx, "message not sent to server", "server", x.ServerName, "mcp_method", method, "why", upstream.PublicReason(upstream.Answer{}, err))
	x.Deps.Log.DebugContext(ctx, "message not sent to server", "server", x.ServerName, "error", upstream.ForLog(err))
}

// HandleResponse delivers a client's response to the waiting request of a server or of the gateway itself. If no
// request is waiting for the response, the response is dropped.
func (x *Exchange) HandleResponse(ctx context.Context) Response {
	if !x.Session.ClientRequests.IsWaiting(x.ID()) {
		if large := x.CheckSize(); large != nil {
			return x.Refuse(ctx, large)
		}
		if !x.Stale {
			x.recordLateAnswer(ctx)
		}
	}
	if !x.Stale {
		x.Session.ClientRequests.Deliver(ctx, x.Message)
	}
	return Accepted()
}

func (x *Exchange) forwardProgress(ctx context.Context) {
	if !x.Session.ClientRequests.WantsProgress(x.Message.ProgressToken.Of(x.Message.Raw)) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), NotifyTimeout)
	defer cancel()
	m, err := x.Message.Outgoing(jsonrpc.Trace{}, nil)
	if err == nil {
		err = x.Session.Upstream.Reply(ctx, m)
	}
	x.logUnsent(ctx, x.Message.Method, err)
}
