package grpctools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// These are error codes of JSON-RPC 2.0, section 5.1.
const (
	codeNoMethod = -32601
	codeNoParams = -32602
)

// conn is a session. Its context is cancelled when the session is closed.
type conn struct {
	transport *Transport
	all       context.Context //nolint:containedctx // the context of the session, which outlives its requests
	end       context.CancelCauseFunc
}

// Request implements upstream.Conn.
func (c *conn) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	if c.all.Err() != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, c.transport.cfg.Name, upstream.ErrClosed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.all, func() { cancel(context.Cause(c.all)) })()
	switch req.Method() {
	case mcp.MethodToolsCall:
		return c.call(ctx, req, events)
	case mcp.MethodToolsList:
		return c.list(ctx, req)
	case mcp.MethodPing:
		return c.transport.answer(ctx, req, []byte(`{}`))
	}
	return c.refuse(ctx, req, codeNoMethod, "a gRPC server has only tools")
}

// Notify implements upstream.Conn. It does nothing, because requests are cancelled through their contexts, and gRPC
// servers support no other notifications.
func (*conn) Notify(context.Context, upstream.Request) error { return nil }

// Listen implements upstream.Conn. It returns ErrNoStream, because a gRPC server sends no messages outside calls.
func (*conn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }

// Close implements upstream.Conn.
func (c *conn) Close(context.Context) error {
	c.end(upstream.ErrClosed)
	return nil
}

func (c *conn) refuse(ctx context.Context, req upstream.Request, code int, why string) (upstream.Answer, error) {
	text, err := jsontext.AppendQuote(nil, why)
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNeverSent, err)
	}
	return c.transport.response(ctx, req, `"error":`, fmt.Appendf(nil, `{"code":%d,"message":%s}`, code, text))
}

func (c *conn) list(ctx context.Context, req upstream.Request) (upstream.Answer, error) {
	tools, err := c.transport.currentTools(ctx)
	if err != nil {
		return upstream.Answer{}, err
	}
	text := []byte(`{"tools":[`)
	for i, t := range tools.listed {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, t.definition...)
	}
	return c.transport.answer(ctx, req, append(text, "]}"...))
}

func (c *conn) call(ctx context.Context, req upstream.Request, events func([]byte)) (_ upstream.Answer, err error) {
	defer func() {
		if panicked := recover(); panicked != nil { // the code above interprets protobuf definitions from an untrusted server
			err = fmt.Errorf("%w: %s: its answer could not be read: %v", upstream.ErrNoAnswer, c.transport.cfg.Name, panicked)
		}
	}()
	tools, err := c.transport.currentTools(ctx)
	if err != nil {
		return upstream.Answer{}, err
	}
	t := tools.named[req.Message.Name]
	if t == nil {
		return c.refuse(ctx, req, codeNoParams, "unknown tool: "+req.Message.Name)
	}
	arguments := req.Message.Arguments.Of(req.Message.Raw)
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	// The arguments are parsed strictly according to the tool's schema, so that the server receives exactly the arguments
	// that the policy service has evaluated.
	in := t.in.New()
	// If this fails, the result is a tool error. The call was not sent, and the same arguments would fail again.
	if err := strictprotojson.Read(arguments, in); err != nil {
		text, err := failed("INVALID_ARGUMENT: "+err.Error(), `{"code":"INVALID_ARGUMENT","reason":"ARGUMENTS_INVALID"}`)
		return c.toAnswer(ctx, req, text, err)
	}
	out, err := c.invoke(ctx, t, in, req, events)
	if errors.Is(err, upstream.ErrWithheld) {
		return upstream.Answer{}, err
	}
	if err != nil {
		return c.failed(ctx, req, err)
	}
	text, err := t.result(out)
	return c.toAnswer(ctx, req, text, err)
}

func (c *conn) toAnswer(ctx context.Context, req upstream.Request, result []byte, err error) (upstream.Answer, error) {
	if err != nil {
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, c.transport.cfg.Name, err)
	}
	return c.transport.answer(ctx, req, result)
}

// errTooMany means that the server has sent too many progress messages during one call.
var errTooMany = fmt.Errorf("more than %d messages came before the answer", upstream.MaxEvents)

// invoke calls the gRPC method and returns its response. If the server reports that it has not processed the call,
// invoke starts the call again. However, a call that may run only once is not started again if gRPC has already
// received the message, because the server may have read the message.
func (c *conn) invoke(ctx context.Context, t *tool, in protoreflect.Message, req upstream.Request, events func([]byte)) (out protoreflect.Message, err error) {
	for range maxRefused {
		try := &attempts{permit: req.Permit}
		if out, err = c.invokeOnce(ctx, t, in, req, try, events); err == nil {
			return out, nil
		}
		if err = try.errorOf(err); !errors.Is(err, errRefused) {
			return nil, err
		}
		if req.Once && try.sent {
			return nil, fmt.Errorf("%w: the call may run only once: %s", errOwn, err) //nolint:errorlint // err means never sent
		}
	}
	return nil, err
}

// invokeOnce is like invoke, but returns an error if the server has not processed the call. It calls events with each
// progress message that arrives before the response. Before it reads a message, it reserves memory for a message of the
// maximum size.
func (c *conn) invokeOnce(ctx context.Context, t *tool, in protoreflect.Message, req upstream.Request, try *attempts, events func([]byte)) (protoreflect.Message, error) {
	ctx, cancel := context.WithCancel(c.transport.callContext(ctx, req.TraceParent))
	defer cancel()
	stream, err := c.transport.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, t.method,
		grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(maxAnswer), grpc.ForceCodecV2(frames{}), grpc.PerRPCCredentials(try))
	if err != nil {
		return nil, neverSent(err)
	}
	if err := try.mayBegin(); err != nil { // the stream may have waited because the server limits the number of streams
		return nil, err
	}
	try.sent = true
	if err := stream.SendMsg(in.Interface()); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", errOwn, err)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	if _, err := stream.Header(); err != nil {
		return nil, err
	}
	if err := req.Room.Grow(ctx, maxAnswer); err != nil {
		return nil, err
	}
	for range upstream.MaxEvents {
		var text []byte
		if err := stream.RecvMsg(&text); err != nil {
			if errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("%w: the server ended the call without an answer", errOwn)
			}
			return nil, err
		}
		out, err := t.message(text)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errOwn, err)
		}
		if t.streams && isProgress(out) {
			c.passProgress(ctx, progressOf(out, req.ProgressToken()), req, events)
			continue
		}
		// The response is used only if the status after the response is OK.
		switch err := stream.RecvMsg(&text); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err == nil:
			return nil, fmt.Errorf("%w: the server answered more than once", errOwn)
		default:
			return nil, err
		}
	}
	return nil, errTooMany
}

// passProgress sends a progress notification to the client if the client has requested progress.
func (c *conn) passProgress(ctx context.Context, text []byte, req upstream.Request, events func([]byte)) {
	if events == nil || len(text) == 0 || len(req.ProgressToken()) == 0 {
		return
	}
	message, err := bodyreader.ReadMessage(ctx, text, c.transport.clean, req.Room)
	if err != nil {
		c.transport.log.DebugContext(ctx, "progress of a call was dropped", "server", c.transport.cfg.Name, "error", upstream.ForLog(err))
		return
	}
	events(message.Raw)
}

// errOwn means that an error has occurred in the gateway itself, not in the server.
var errOwn = errors.New("the call failed in the gateway")

// isOwn reports whether a status was created by the gateway's own gRPC library and not by the server.
func isOwn(st *status.Status) bool {
	return (st.Code() == codes.ResourceExhausted || st.Code() == codes.Internal) && strings.HasPrefix(st.Message(), "grpc: ")
}

var errAway = errors.New("there is no connection to the server")

func neverSent(err error) error {
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// failed returns the outcome of a call without a response. If the server has returned a status, the outcome is a tool
// result that reports an error. If the effect of the call is unknown, the outcome is an error.
func (c *conn) failed(ctx context.Context, req upstream.Request, err error) (upstream.Answer, error) {
	name := c.transport.cfg.Name
	st, fromServer := status.FromError(err)
	switch {
	case errors.Is(err, errRefused):
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNeverSent, name, err)
	case errors.Is(err, errAway):
		return upstream.Answer{}, fmt.Errorf("%w: %w: %s: %w", upstream.ErrNeverSent, upstream.ErrUnreached, name, err)
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return upstream.Answer{}, fmt.Errorf("%w: %s", upstream.ErrTimeout, name)
	case ctx.Err() != nil:
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, name, context.Cause(ctx))
	case !fromServer, errors.Is(err, errOwn), isOwn(st), st.Code() == codes.Unavailable, st.Code() == codes.Canceled:
		return upstream.Answer{}, fmt.Errorf("%w: %s: %w", upstream.ErrNoAnswer, name, err)
	case st.Code() == codes.DeadlineExceeded:
		return upstream.Answer{}, fmt.Errorf("%w: %s", upstream.ErrTimeout, name)
	}
	text, err := failure(st)
	return c.toAnswer(ctx, req, text, err)
}
