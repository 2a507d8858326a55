package rpc_test

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// probeService is a service for tests. It has one method for each form of the callers option, and one method without
// the option.
const probeService = "sluice.probe.v1.ProbeService"

// These are the methods of the probe. Each receives an [identityv1.RevokeTokenRequest], whose name has constraints, and
// returns a string.
const (
	methodUnary  = "/" + probeService + "/Unary"
	methodStream = "/" + probeService + "/Stream" // a stream in both directions
	methodBehalf = "/" + probeService + "/Behalf" // requires a principal
	methodBare   = "/" + probeService + "/Bare"   // has no callers option
	methodEmpty  = "/" + probeService + "/Empty"  // names no callers
	methodNobody = "/" + probeService + "/Nobody" // names the unspecified role and token role
	methodAgents = "/" + probeService + "/Agents" // names agents
	methodLarge  = "/" + probeService + "/Large"  // accepts 1 MiB
)

type probe struct {
	// unary implements the unary methods. The function stream implements the streaming method.
	unary  func(context.Context, *identityv1.RevokeTokenRequest) (string, error)
	stream func(grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error
}

// register returns the probe as a service.
func (p probe) register(t testing.TB) serviceFunc {
	t.Helper()
	if err := probeContract(); err != nil {
		t.Fatal(err)
	}
	return func(r grpc.ServiceRegistrar) {
		desc := &grpc.ServiceDesc{ServiceName: probeService}
		for _, name := range []string{"Unary", "Behalf", "Bare", "Empty", "Nobody", "Agents", "Large"} {
			desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: p.handler("/" + probeService + "/" + name)})
		}
		desc.Streams = []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(_ any, ss grpc.ServerStream) error {
			return p.stream(&grpc.GenericServerStream[identityv1.RevokeTokenRequest, wrapperspb.StringValue]{ServerStream: ss})
		}}}
		r.RegisterService(desc, nil)
	}
}

// handler returns a handler like those that protoc-gen-go-grpc generates.
func (p probe) handler(method string) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(identityv1.RevokeTokenRequest)
		if err := dec(in); err != nil {
			return nil, err
		}
		next := func(ctx context.Context, req any) (any, error) {
			text, err := p.unary(ctx, req.(*identityv1.RevokeTokenRequest))
			return wrapperspb.String(text), err
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: method}, next)
	}
}

// probeContract registers the descriptor of the probe service in the same way as generated code does.
var probeContract = sync.OnceValue(func() error {
	method := func(name string, callers *authv1.Callers) *descriptorpb.MethodDescriptorProto {
		m := &descriptorpb.MethodDescriptorProto{
			Name: new(name), InputType: new(".sluice.identity.v1.RevokeTokenRequest"), OutputType: new(".google.protobuf.StringValue"),
			ClientStreaming: new(name == "Stream"), ServerStreaming: new(name == "Stream"),
		}
		if callers != nil {
			m.Options = new(descriptorpb.MethodOptions)
			proto.SetExtension(m.Options, authv1.E_Callers, callers)
			proto.SetExtension(m.Options, authv1.E_Carried, name != "Stream")
		}
		if name == "Large" {
			proto.SetExtension(m.Options, authv1.E_MaxRequestBytes, uint32(1<<20))
		}
		return m
	}
	usual := &authv1.Callers{Roles: []authv1.Role{gateway}, Tokens: []authv1.TokenRole{operator}}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("sluice/probe/v1/probe.proto"), Package: new("sluice.probe.v1"), Syntax: new("proto3"),
		Dependency: []string{"sluice/identity/v1/identity.proto", "google/protobuf/wrappers.proto", "sluice/auth/v1/callers.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new("ProbeService"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Unary", usual),
			method("Stream", usual),
			method("Behalf", &authv1.Callers{Roles: []authv1.Role{gateway, wasmagent, ratelimit}, Tokens: []authv1.TokenRole{operator}, Principal: true}),
			method("Bare", nil),
			method("Empty", new(authv1.Callers)),
			method("Nobody", &authv1.Callers{Roles: []authv1.Role{0}, Tokens: []authv1.TokenRole{0}}),
			method("Agents", &authv1.Callers{Tokens: []authv1.TokenRole{agent}}),
			method("Large", usual),
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		return err
	}
	return protoregistry.GlobalFiles.RegisterFile(file)
})

func ask(ctx context.Context, conn grpc.ClientConnInterface, method string) (string, error) {
	return askFor(ctx, conn, method, "name")
}

func askFor(ctx context.Context, conn grpc.ClientConnInterface, method, name string) (string, error) {
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, method, &identityv1.RevokeTokenRequest{Name: name}, out)
	return out.GetValue(), err
}

// open opens a stream, sends a request for each name and reads one response.
func open(ctx context.Context, conn grpc.ClientConnInterface, names ...string) (string, error) {
	stream, err := openStream(ctx, conn)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if err := stream.Send(&identityv1.RevokeTokenRequest{Name: name}); err != nil {
			break // RecvMsg returns the reason
		}
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	out, err := stream.Recv()
	return out.GetValue(), err
}

func openStream(ctx context.Context, conn grpc.ClientConnInterface) (*grpc.GenericClientStream[identityv1.RevokeTokenRequest, wrapperspb.StringValue], error) {
	raw, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Stream", ServerStreams: true, ClientStreams: true}, methodStream)
	if err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[identityv1.RevokeTokenRequest, wrapperspb.StringValue]{ClientStream: raw}, nil
}
