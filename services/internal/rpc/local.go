package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// pipeBuffer is the size in bytes of the buffer between the two ends of a pipe.
const pipeBuffer = 256 << 10

// localMethod is a unary method with its interceptors. principal is the signed principal on whose behalf the call is
// made. It may be empty.
type localMethod func(ctx context.Context, principal string, args any) (any, error)

// localConn is a connection from a service to the server in the same process. Unary calls run the handler and all its
// interceptors directly. Messages are not copied, so a message must not be changed after it was sent. Streams use gRPC
// over a pipe, which provides flow control.
type localConn struct {
	server *Server
	// from contains only the peer of the connection, which is the client's identity (a service of the mesh).
	from   context.Context //nolint:containedctx // the parent of the context of every call
	client clientSide
	pipe   *grpc.ClientConn
}

// Conn returns a connection to this server from a service in this process. It must be called before Serve.
func (s *Server) Conn(from authn.Peer, client ClientDeps) (grpc.ClientConnInterface, error) {
	if _, err := authn.ParseRole(authn.RoleName(from.Role)); err != nil {
		return nil, fmt.Errorf("rpc: open a pipe: %w", err)
	}
	lis := pipeListener{Listener: bufconn.Listen(pipeBuffer), peer: from}
	opts := []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
	if client.Trace != nil {
		opts = append(opts, grpc.WithStatsHandler(client.Trace))
	}
	pipe, err := grpc.NewClient("passthrough:///pipe", opts...)
	if err != nil {
		return nil, fmt.Errorf("open a pipe: %w", err)
	}
	s.pipes = append(s.pipes, lis)
	return &localConn{
		server: s,
		from:   peer.NewContext(context.Background(), &peer.Peer{Addr: lis.Addr(), AuthInfo: pipeInfo{peer: from}}),
		client: clientSide{deps: client, audience: s.chain.gate.audienceOf},
		pipe:   pipe,
	}, nil
}

// pipeListener accepts connections and adds the identity of the client to each of them.
type pipeListener struct {
	*bufconn.Listener
	peer authn.Peer
}

// Accept implements [net.Listener].
func (l pipeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return pipeConn{Conn: conn, peer: l.peer}, nil
}

// Invoke implements [grpc.ClientConnInterface]. It ignores call options.
func (c *localConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	serve, ok := c.server.local[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	principal, err := c.client.principal(ctx, method)
	if err != nil {
		return err
	}
	ctx, endClient := startSpan(ctx, c.client.deps.Trace, method, true)
	in, err := newLocalContext(ctx, c.from)
	if err != nil {
		endClient(err)
		return err
	}
	defer in.finish()
	served, endServer := startSpan(in, c.server.deps.Trace, method, false)
	resp, err := serve(served, principal, args)
	endServer(err)
	if err == nil {
		err = assignMessage(reply, resp)
	} else {
		err = status.Convert(err).Err() // the error that a client would receive over the network
	}
	endClient(err)
	return err
}

// startSpan calls a stats handler for a call inside the process in the same way as gRPC does for a call over the
// network, so that the same library creates the same spans. If the trace is not sampled, startSpan creates no span, but
// the context still contains the trace.
func startSpan(ctx context.Context, h stats.Handler, method string, client bool) (context.Context, func(error)) {
	if h == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, func(error) {}
	}
	begin := time.Now()
	ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method})
	h.HandleRPC(ctx, &stats.Begin{Client: client, BeginTime: begin})
	return ctx, func(err error) {
		h.HandleRPC(ctx, &stats.End{Client: client, BeginTime: begin, EndTime: time.Now(), Error: err})
	}
}

// NewStream implements [grpc.ClientConnInterface].
func (c *localConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := c.client.assert(ctx, method)
	if err != nil {
		return nil, err
	}
	return c.pipe.NewStream(ctx, desc, method, opts...)
}

// assignMessage makes dst equal to src without copying the contents of the fields.
func assignMessage(dst, src any) error {
	to, ok1 := dst.(proto.Message)
	from, ok2 := src.(proto.Message)
	if !ok1 || !ok2 || to.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
		return errors.New("a message inside the process has the wrong type")
	}
	proto.Reset(to) // as Unmarshal does
	into := to.ProtoReflect()
	from.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		into.Set(fd, v)
		return true
	})
	into.SetUnknown(from.ProtoReflect().GetUnknown())
	return nil
}
