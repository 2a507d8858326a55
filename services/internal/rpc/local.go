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
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// pipeBuffer is the size of the buffer between the ends of a pipe, in bytes.
const pipeBuffer = 256 << 10

// localMethod is a unary method, behind the chain.
type localMethod struct {
	impl    any
	handler grpc.MethodHandler
}

// localConn is a connection from a role to the server of its own process. Unary
// calls run the handler and the whole chain of interceptors directly, without
// copies: a message is read-only once it was sent. Streams go through real gRPC
// over a pipe, because their flow control is worth having.
type localConn struct {
	server *Server
	from   *peer.Peer
	client clientSide
	pipe   *grpc.ClientConn
}

// Conn returns a connection from one of this process's roles to this server. It
// must be called before Serve.
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
		from:   &peer.Peer{Addr: lis.Addr(), AuthInfo: pipeInfo{peer: from}},
		client: clientSide{deps: client, audience: s.chain.gate.audienceOf},
		pipe:   pipe,
	}, nil
}

// pipeListener hands out connections that carry the role at their other end.
type pipeListener struct {
	*bufconn.Listener
	peer authn.Peer
}

// Accept implements net.Listener.
func (l pipeListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return pipeConn{Conn: conn, peer: l.peer}, nil
}

// Invoke implements grpc.ClientConnInterface. Of the call options none bears on
// a call inside the process.
func (c *localConn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	m, ok := c.server.local[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	ctx, cancel, err := c.client.prepare(ctx, method)
	if err != nil {
		return err
	}
	defer cancel()
	ctx, endClient := traced(ctx, c.client.deps.Trace, method, true)
	in, stop := c.incoming(ctx)
	defer stop()
	in, endServer := traced(in, c.server.deps.Trace, method, false)
	resp, err := m.handler(m.impl, in, func(req any) error { return share(req, args) }, nil)
	endServer(err)
	if err == nil {
		err = share(reply, resp)
	} else {
		err = status.Convert(err).Err() // what a client would read off the wire
	}
	endClient(err)
	return err
}

// traced tells a stats handler of a call inside the process what gRPC would tell
// it of one over the network, so that the same library makes the same spans. It makes
// none of a call that is not sampled, and incoming carries its trace on.
func traced(ctx context.Context, h stats.Handler, method string, client bool) (context.Context, func(error)) {
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

// NewStream implements grpc.ClientConnInterface.
func (c *localConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := c.client.assert(ctx, method)
	if err != nil {
		return nil, err
	}
	return c.pipe.NewStream(ctx, desc, method, opts...)
}

// incoming makes the server's context of the client's: its deadline and its end,
// its metadata, its span as a remote parent, and none of its values: a server must
// not see what its client holds, on this path as little as over the network. It is
// made of the library's own contexts alone, for deriving from any other kind starts
// a goroutine each time.
func (c *localConn) incoming(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline() // prepare has seen to it that there is one
	in, cancel := context.WithDeadline(context.Background(), end)
	unlink := context.AfterFunc(ctx, cancel)
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		in = metadata.NewIncomingContext(in, md)
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		in = trace.ContextWithRemoteSpanContext(in, span)
	}
	return peer.NewContext(in, c.from), func() {
		unlink()
		cancel()
	}
}

// share makes dst the same message as src without copying what it holds.
func share(dst, src any) error {
	to, ok1 := dst.(proto.Message)
	from, ok2 := src.(proto.Message)
	if !ok1 || !ok2 || to.ProtoReflect().Descriptor() != from.ProtoReflect().Descriptor() {
		return errors.New("a message inside the process has the wrong type")
	}
	proto.Reset(to) // as reading off the wire does
	into := to.ProtoReflect()
	from.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		into.Set(fd, v)
		return true
	})
	into.SetUnknown(from.ProtoReflect().GetUnknown())
	return nil
}
