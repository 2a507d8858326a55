package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// defaultDeadline applies to a unary call without a deadline, and maxDeadline to one with a later deadline.
	defaultDeadline = 30 * time.Second
	maxDeadline     = 5 * time.Minute
	// maxReserve is the maximum time reserved from a client's deadline to report a timeout: a tenth of the remaining
	// time, at most this.
	maxReserve = 20 * time.Millisecond
)

// chain is the sequence of interceptors of every call into a server, on every path: recovery from panics, deadline,
// authentication and authorization, validation, and hiding of internal errors.
type chain struct {
	gate     *gate
	validate protovalidate.Validator
	log      *slog.Logger
	// stopping is closed when the server begins to drain.
	stopping chan struct{}
	// people and roles count the calls of callers over the network.
	people, roles *shares
	// buffers are the buffers for encoded answers.
	buffers buffers
}

// errStopping ends the streams of a server that drains. Clients connect to another replica, or to this one after its
// restart.
var errStopping = &Error{Code: codes.Unavailable, Reason: "STOPPING", Err: errors.New("the server is stopping")}

// unary adds the chain to a unary method that is called over the network: all checks of the caller come before its
// message is read.
func (c *chain) unary(method string, handle grpc.MethodHandler) grpc.MethodHandler {
	checked, most := c.checked, c.gate.termsOf(method).request
	return func(srv any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (resp any, err error) {
		defer func() { err = c.finish(ctx, method, recover(), err) }()
		bounded, cancel, err := c.deadline(ctx)
		if err != nil {
			return nil, err
		}
		defer cancel()
		admitted, own, err := c.enter(bounded, method)
		if err != nil {
			return nil, err
		}
		defer own.leave()
		end, err := own.turn(admitted)
		if err != nil {
			return nil, err
		}
		defer end()
		in := &incoming{ctx: admitted, most: most, portion: own}
		defer in.free()
		if resp, err = handle(srv, admitted, in.only, checked); err != nil {
			return nil, err
		}
		in.free() // the request's quota is available for the answer
		return c.answer(admitted, own, resp)
	}
}

// sent turns a unary method into a stream with one message each way, which is the same on the wire: so the server
// notices whether the answer was sent.
func sent(serve grpc.MethodHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		resp, err := serve(srv, ss.Context(), nil, nil)
		if err != nil {
			return err
		}
		return send(ss, resp)
	}
}

// checked validates the request of a unary method.
func (c *chain) checked(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := c.check(req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// tap handles a call over the network when its header was read, before it has a stream, and so before any of its
// message is stored: a refused call costs no more than that. The returned context ends with the call.
func (c *chain) tap(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	v := visitorOf(ctx)
	if v == nil {
		return ctx, nil // a call on a pipe; enter admits it
	}
	defer func() {
		if err != nil {
			v.refuse()
			err = c.finish(ctx, info.FullMethodName, nil, err)
		}
	}()
	if ctx, err = c.gate.admit(ctx, info.FullMethodName, metadata.ValueFromIncomingContext(ctx, authn.PrincipalKey)); err != nil {
		return nil, err
	}
	caller := authn.CallerOf(ctx)
	if caller == nil {
		return v.stranger(ctx)
	}
	if err := v.identified(caller); err != nil {
		return nil, err
	}
	if c.gate.methods[info.FullMethodName].lasts {
		return ctx, nil
	}
	return inTime(ctx), nil
}

// inTime bounds a unary call before its message is read: otherwise an incomplete call would last forever.
func inTime(ctx context.Context) context.Context {
	most := defaultDeadline
	if end, ok := ctx.Deadline(); ok {
		if most = maxDeadline; time.Until(end) <= most {
			return ctx
		}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// enter counts a call against its caller's quota, until it leaves. Calls over the network were admitted by the tap;
// calls inside the process are admitted here and bounded by their clients.
func (c *chain) enter(ctx context.Context, method string) (_ context.Context, own *portion, err error) {
	if visitorOf(ctx) == nil {
		ctx, err = c.gate.admit(ctx, method, metadata.ValueFromIncomingContext(ctx, authn.PrincipalKey))
		return ctx, nil, err
	}
	if err := plain(ctx); err != nil {
		return nil, nil, err
	}
	caller := authn.CallerOf(ctx)
	switch {
	case caller == nil && c.gate.termsOf(method).anyone:
		return ctx, nil, nil
	case caller == nil:
		return nil, nil, errors.New("a call came past the tap")
	}
	shares := c.people
	if caller.Person == nil {
		shares = c.roles
	}
	own, err = shares.enter(whoseOf(caller))
	return ctx, own, err
}

// stream is the chain of streaming calls. They last as long as their client and the server, and have no deadline.
func (c *chain) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer func() {
		panicked := recover()
		if err != nil && errors.Is(context.Cause(ctx), errStopping) {
			err = errStopping // independent of the error that the handler returned
		}
		err = c.finish(ctx, info.FullMethod, panicked, err)
	}()
	admitted, own, err := c.enter(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	defer own.leave()
	go func() {
		select {
		case <-c.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	in := &incoming{ctx: admitted, most: c.gate.termsOf(info.FullMethod).request, portion: own}
	defer in.end()
	return next(srv, &checkedStream{ServerStream: ss, ctx: admitted, chain: c, in: in, many: info.IsClientStream})
}

// compile compiles the constraints of all requests of a service, so that no first caller waits for it and errors are
// found at the start.
func (c *chain) compile(service string) error {
	contract, err := contractOf(service)
	if err != nil {
		return err
	}
	for i := range contract.Methods().Len() {
		asked := contract.Methods().Get(i).Input()
		err := c.validate.Validate(dynamicpb.NewMessage(asked))
		if _, invalid := errors.AsType[*protovalidate.ValidationError](err); err != nil && !invalid {
			return fmt.Errorf("compile the constraints of %s: %w", asked.FullName(), err)
		}
	}
	return nil
}

// checkedStream validates the messages of a client's stream, and counts what is sent to the client and not read.
type checkedStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // grpc.ServerStream hands its context out by method
	chain *chain
	in    *incoming
	// many reports whether the client may send more than one message.
	many bool
}

// SendMsg encodes, counts and sends a message.
func (s *checkedStream) SendMsg(m any) error {
	answer, err := s.chain.answer(s.ctx, s.in.portion, m)
	if err != nil {
		return err
	}
	return send(s.ServerStream, answer)
}

// Context returns the context with the caller in it.
func (s *checkedStream) Context() context.Context { return s.ctx }

// RecvMsg reads a message and refuses one that breaks its constraints.
func (s *checkedStream) RecvMsg(m any) error {
	read := s.in.next
	if !s.many {
		read = s.in.only
	}
	if err := read(m); err != nil {
		return err
	}
	return s.chain.check(m)
}

// deadline reserves a part of the caller's deadline, and sets the default deadline if there is none.
func (c *chain) deadline(ctx context.Context) (context.Context, context.CancelFunc, error) {
	end, ok := ctx.Deadline()
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, defaultDeadline)
		return ctx, cancel, nil
	}
	end, err := reserved(end)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	return ctx, cancel, nil
}

// reserved returns the handler's deadline for a caller's deadline.
func reserved(end time.Time) (time.Time, error) {
	left := time.Until(end)
	if left <= 0 {
		return time.Time{}, status.Error(codes.DeadlineExceeded, "the deadline had passed when the call arrived")
	}
	return end.Add(-min(maxReserve, left/10)), nil
}

// check enforces the constraints that the contract states on a request.
func (c *chain) check(req any) error {
	msg, ok := req.(proto.Message)
	if !ok {
		return fmt.Errorf("request of type %T is not a protobuf message", req)
	}
	if err := c.validate.Validate(msg); err != nil {
		if _, broken := errors.AsType[*protovalidate.ValidationError](err); !broken {
			return fmt.Errorf("validate %s: %w", msg.ProtoReflect().Descriptor().FullName(), err)
		}
		return &Error{Code: codes.InvalidArgument, Reason: "INVALID_REQUEST", Err: err}
	}
	return nil
}

// finish converts a handler's result into what the client may see: a status unchanged, a deadline or a cancellation
// as its code, everything else as INTERNAL without text, which is logged here and nowhere else.
func (c *chain) finish(ctx context.Context, method string, panicked any, err error) error {
	if panicked != nil {
		c.log.ErrorContext(ctx, "rpc panicked", "rpc_method", method, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "internal error")
	}
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own.GRPCStatus().Err()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the deadline passed")
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "the call was cancelled")
	}
	// A wrapped status is from another server; sending its code would present it as ours.
	if st, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return st.GRPCStatus().Err()
	}
	c.log.ErrorContext(ctx, "rpc failed", "rpc_method", method, "error", err)
	return status.Error(codes.Internal, "internal error")
}
