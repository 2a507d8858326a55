package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
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
	// defaultDeadline is the maximum duration of a unary call whose client sets no deadline. maxDeadline is the maximum
	// duration of any unary call.
	defaultDeadline = 30 * time.Second
	maxDeadline     = 5 * time.Minute
	// maxReservedTime limits how much earlier the server's deadline is than the client's, so that the server can still
	// report a timeout. The difference is one tenth of the remaining time, but at most maxReservedTime.
	maxReservedTime = 20 * time.Millisecond
)

// chain contains the interceptors through which every call to a server passes. They recover from panics, set a
// deadline, authenticate and authorize the caller, validate the request, and hide internal errors. They are the same
// for calls over the network and calls inside the process.
type chain struct {
	gate     *authorizer
	validate protovalidate.Validator
	log      *slog.Logger
	// stopping is closed when the server begins to stop.
	stopping chan struct{}
	// people limits the calls that people make over the network. roles limits the calls that other services make over the
	// network.
	people, roles *callQuotas
	// buffers contains the buffers for encoded answers.
	buffers buffers
}

// errStopping ends the streams of a server that is stopping. Clients then connect to another replica, or to this server
// after its restart.
var errStopping = &Error{Code: codes.Unavailable, Reason: "STOPPING", Err: errors.New("the server is stopping")}

// unary adds the interceptors to a unary method that is called over the network. All checks of the caller are made
// before the message is read.
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
		defer own.finish()
		end, err := own.waitTurn(admitted)
		if err != nil {
			return nil, err
		}
		end = sync.OnceFunc(end)
		defer end()
		admitted = context.WithValue(admitted, turnKey{}, end)
		in := &incoming{ctx: admitted, maxSize: most, portion: own}
		defer in.release()
		if resp, err = handle(srv, admitted, in.readSingle, checked); err != nil {
			return nil, err
		}
		in.release() // makes the request's quota available for the answer
		return c.answer(admitted, own, resp)
	}
}

// asStream turns a unary method into a stream with one message in each direction. Both look the same on the network,
// but with a stream the server can detect whether the answer was sent.
func asStream(serve grpc.MethodHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		resp, err := serve(srv, ss.Context(), nil, nil)
		if err != nil {
			return err
		}
		return send(ss, resp)
	}
}

// checked validates the request of a unary method and then calls the handler.
func (c *chain) checked(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := c.check(req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// tap admits or refuses a call over the network as soon as the call's header has been read. At that point, no stream
// exists for the call, and no part of its message is stored. Therefore a refused call uses only the memory of its
// header. The returned context ends with the call.
func (c *chain) tap(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	v := netPeerOf(ctx)
	if v == nil {
		return ctx, nil // enter admits calls on a pipe
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
		return v.countUnauthenticated(ctx)
	}
	if err := v.identify(caller); err != nil {
		return nil, err
	}
	if c.gate.methods[info.FullMethodName].isStream {
		return ctx, nil
	}
	return withUnaryDeadline(ctx), nil
}

// withUnaryDeadline sets a deadline for a unary call before the call's message is read. Otherwise an incomplete call
// would never end.
func withUnaryDeadline(ctx context.Context) context.Context {
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

// enter counts a call against its caller's quota until [callUsage.finish] is called. A call over the network has
// already been admitted by tap. enter itself admits a call inside the process. Clients inside the process limit the
// number of their calls themselves.
func (c *chain) enter(ctx context.Context, method string) (_ context.Context, own *callUsage, err error) {
	if netPeerOf(ctx) == nil {
		ctx, err = c.gate.admit(ctx, method, metadata.ValueFromIncomingContext(ctx, authn.PrincipalKey))
		return ctx, nil, err
	}
	if err := refuseCompressed(ctx); err != nil {
		return nil, nil, err
	}
	caller := authn.CallerOf(ctx)
	switch {
	case caller == nil && c.gate.termsOf(method).anyone:
		return ctx, nil, nil
	case caller == nil:
		return nil, nil, errors.New("a call was not handled by the tap handle")
	}
	shares := c.people
	if caller.Person == nil {
		shares = c.roles
	}
	own, err = shares.admit(quotaKeyOf(caller))
	return ctx, own, err
}

// stream adds the interceptors to streaming calls. A stream has no deadline. It lasts until its client ends it or the
// server stops.
func (c *chain) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	ctx, cancel := context.WithCancelCause(ss.Context())
	defer cancel(nil)
	defer func() {
		panicked := recover()
		if err != nil && errors.Is(context.Cause(ctx), errStopping) {
			err = errStopping // replaces any error from the handler
		}
		err = c.finish(ctx, info.FullMethod, panicked, err)
	}()
	admitted, own, err := c.enter(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	defer own.finish()
	go func() {
		select {
		case <-c.stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	in := &incoming{ctx: admitted, maxSize: c.gate.termsOf(info.FullMethod).request, portion: own}
	defer in.end()
	return next(srv, &checkedStream{ServerStream: ss, ctx: admitted, chain: c, in: in, many: info.IsClientStream})
}

// compile compiles the constraints of all requests to a service when the server starts. Therefore errors in the
// constraints are found early, and the first caller need not wait.
func (c *chain) compile(service string) error {
	contract, err := serviceDescriptor(service)
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

// checkedStream validates the messages of a stream. It also counts answers that the client has not read.
type checkedStream struct {
	grpc.ServerStream
	ctx   context.Context //nolint:containedctx // grpc.ServerStream returns its context from a method
	chain *chain
	in    *incoming
	// many is true if the client may send more than one message.
	many bool
}

// SendMsg encodes a message, counts it and sends it.
func (s *checkedStream) SendMsg(m any) error {
	answer, err := s.chain.answer(s.ctx, s.in.portion, m)
	if err != nil {
		return err
	}
	return send(s.ServerStream, answer)
}

// Context returns the context that contains the caller.
func (s *checkedStream) Context() context.Context { return s.ctx }

// RecvMsg reads a message. It returns an error if the message violates its constraints.
func (s *checkedStream) RecvMsg(m any) error {
	read := s.in.readNext
	if !s.many {
		read = s.in.readSingle
	}
	if err := read(m); err != nil {
		return err
	}
	return s.chain.check(m)
}

// deadline returns a context whose deadline is slightly before the caller's deadline. If the caller sets no deadline,
// the default deadline is used.
func (c *chain) deadline(ctx context.Context) (context.Context, context.CancelFunc, error) {
	end, ok := ctx.Deadline()
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, defaultDeadline)
		return ctx, cancel, nil
	}
	end, err := handlerDeadline(end)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	return ctx, cancel, nil
}

func handlerDeadline(end time.Time) (time.Time, error) {
	left := time.Until(end)
	if left <= 0 {
		return time.Time{}, status.Error(codes.DeadlineExceeded, "the deadline had passed when the call arrived")
	}
	return end.Add(-min(maxReservedTime, left/10)), nil
}

// check returns an error if a request violates the constraints in its proto file.
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

// finish converts the result of a handler to the error that the client receives. A status is sent unchanged. A timeout
// or a cancellation is sent with its code. Any other error is logged only here, and sent as INTERNAL without its
// message.
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
	// A status that is wrapped in another error came from another server. If the code of that status were sent, the
	// client would attribute the failure to this server.
	if st, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return st.GRPCStatus().Err()
	}
	c.log.ErrorContext(ctx, "rpc failed", "rpc_method", method, "error", err)
	return status.Error(codes.Internal, "internal error")
}
