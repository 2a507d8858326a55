package v2025

import (
	"context"
	"errors"
	"net/http"
	"sync"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

const (
	headerLastEventID = "Last-Event-Id"
	// methodListen is the method name with which client streams are counted.
	methodListen = "listen"
)

// Listen forwards the session's stream to the client until the stream ends. exists is false if the session has no
// stream.
func (x Message) Listen(method string) (resp dispatch.Response, exists bool) {
	ctx := x.ClientCtx
	if refused := x.Resolve(); refused != nil {
		return x.Refuse(ctx, refused), true
	}
	id, ok := protocol.SingleHeader(x.Header, mcp.HeaderSession)
	if !ok || method != http.MethodGet || !x.Sink.Accepts() { // some clients send such a request without a session
		return dispatch.Response{}, false
	}
	var err error
	if x.Slot, err = x.InFlight.Begin(x.Principal, x.ServerName); err != nil {
		return x.Refuse(ctx, protocol.TooMuchInFlight(err)), true
	}
	sess, release, err := x.Sessions.Use(id, protocol.SessionKey(x.Caller, x.ServerName))
	if err != nil {
		return x.Refuse(ctx, protocol.UnknownSession()), true
	}
	release = sync.OnceFunc(release)
	x.Release = release
	x.Enter(sess)
	if refused := x.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: x.Principal, Server: x.ServerName, Method: methodListen}); refused != nil {
		refused.IsProtocolError = true
		return x.Refuse(ctx, refused), true
	}
	lastEventID, resumes := protocol.SingleHeader(x.Header, headerLastEventID)
	if resumes && session.IsReplayID(lastEventID) {
		return x.resumeAnswer(lastEventID, release), true
	}
	if len(x.Header[headerLastEventID]) > 0 && (!resumes || !sess.Events.Contains(lastEventID)) {
		return x.Refuse(ctx, refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, "Last-Event-ID is not an event of this session.")), true
	}
	switch refused, exists := x.endpoint().mayListen(ctx); {
	case refused != nil:
		return x.Refuse(ctx, refused), true
	case !exists:
		return dispatch.Response{}, false
	}
	_, ctx, done, err := x.Sessions.Listen(ctx, id, protocol.SessionKey(x.Caller, x.ServerName), false)
	if err != nil { // the session has just been closed
		return x.Refuse(x.ClientCtx, protocol.UnknownSession()), true
	}
	x.Cleanup.Add(done)
	release() // a stream does not keep the session in use
	x.ClientCtx = ctx
	return x.endpoint().listen(ctx, lastEventID)
}

// resumeAnswer continues the stream of an answer after the event with the given id, until the answer is sent. Stored
// messages are sent again without another evaluation, because the policy service has already evaluated them for this
// session.
func (x Message) resumeAnswer(lastEventID string, release func()) dispatch.Response {
	if x.Stale {
		return x.Refuse(x.ClientCtx, refusal.ProtocolError(commonv1.Code_CODE_POLICY_UNAVAILABLE, ""))
	}
	stream, next, ok := x.Session.Replay.Resume(lastEventID, string(visibility.AppendCaller(nil, x.Principal, "")))
	if !ok {
		return x.Refuse(x.ClientCtx, refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, "Last-Event-ID is not an event of this session that is still stored."))
	}
	_, ctx, done, err := x.Sessions.Listen(x.ClientCtx, x.Session.ID, protocol.SessionKey(x.Caller, x.ServerName), true)
	if err != nil { // the session has just been closed, or has too many streams
		return x.Refuse(x.ClientCtx, protocol.UnknownSession())
	}
	defer done()
	release() // a stream does not keep the session in use
	out := x.NewRelay()
	ctx, cancel := context.WithCancel(ctx)
	var alive sync.WaitGroup
	defer func() { cancel(); alive.Wait() }()
	out.Open()
	alive.Go(func() { out.KeepOpen(ctx, cancel) })
	for ; ; next++ {
		id, message, err := stream.Next(ctx, next)
		if err != nil || message == nil || !x.MayReceiveFrom(ctx, stream.Server) || out.Send(upstream.Event{ID: id}, message) != nil {
			break
		}
	}
	return dispatch.Response{Unrecorded: stream.IsUnrecorded()}
}

// mayListen refuses to open a stream if the policy service is unavailable. exists is false if no rule can allow the
// caller to call the server.
func (x Message) mayListen(ctx context.Context) (refused *refusal.Refusal, exists bool) {
	access, err := x.Access(ctx)
	if err != nil {
		return refusal.ProtocolError(commonv1.Code_CODE_POLICY_UNAVAILABLE, ""), true
	}
	return nil, access.MayCall
}

// listen forwards messages from the server until either the server's stream or the client's stream ends. exists is
// false if the server has no stream.
func (x Message) listen(ctx context.Context, lastEventID string) (resp dispatch.Response, exists bool) {
	out := x.NewRelay()
	defer out.Settle()
	ctx, cancel := context.WithCancel(ctx)
	var alive sync.WaitGroup
	defer func() { cancel(); alive.Wait() }()
	opened := false
	err := x.Session.Upstream.Listen(ctx, upstream.Listener{
		After: lastEventID, Room: &x.Slot.Answer,
		Opened: func() {
			opened = true
			out.Open()
			alive.Go(func() { out.KeepOpen(ctx, cancel) })
		},
		Event: func(event upstream.Event) error {
			if !x.MayReceive(ctx) {
				return dispatch.ErrStale
			}
			return out.Deliver(event)
		},
	})
	if opened {
		return dispatch.Response{}, true
	}
	x.Log.DebugContext(ctx, "server has no stream", "server", x.ServerName, "error", upstream.ForLog(err))
	if ctx.Err() != nil {
		return x.endUnopened(ctx, out), true
	}
	if errors.Is(err, upstream.ErrNoStream) {
		return dispatch.Response{}, false
	}
	if upstream.IsSignIn(err) {
		refused := x.ServerFailed(ctx, upstream.Answer{}, err)
		return x.Refuse(context.WithoutCancel(ctx), refusal.ProtocolError(refused.Code, refused.Message)), true
	}
	return x.Refuse(context.WithoutCancel(ctx), refusal.ProtocolError(commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "")), true
}

// endUnopened returns the response to a client's stream that has ended before the server opened its own stream. If the
// session has ended, the response tells the client to open another session. Otherwise the client's stream ends
// normally, because a new stream has replaced it, the client has disconnected, or the gateway is stopping.
func (x Message) endUnopened(ctx context.Context, out *dispatch.Relay) dispatch.Response {
	_, done, err := x.Sessions.Use(x.Session.ID, x.Session.Key)
	if err != nil {
		return x.Refuse(context.WithoutCancel(ctx), protocol.UnknownSession())
	}
	done()
	out.Open()
	return dispatch.Response{}
}
