package grpctools_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// shown starts a server and returns its address. The server returns the given protobuf definitions by reflection and
// has no other service.
func shown(t *testing.T, files ...*descriptorpb.FileDescriptorProto) string {
	t.Helper()
	known := new(protoregistry.Files)
	for _, file := range files {
		f, err := protodesc.NewFile(file, both{known})
		if err != nil {
			t.Fatal(err)
		}
		if err := known.RegisterFile(f); err != nil {
			t.Fatal(err)
		}
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "bad.v1.Bad", HandlerType: (*any)(nil)}, nil)
	reflectionv1.RegisterServerReflectionServer(server, reflection.NewServerV1(reflection.ServerOptions{
		Services: server, DescriptorResolver: both{known}, ExtensionResolver: protoregistry.GlobalTypes,
	}))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return lis.Addr().String()
}

// Case X1. A session cannot be opened if the server's protobuf definitions declare a reserved package, or if they would
// need much more memory than their length suggests.
func TestOpen_RefusesContractsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	const part = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	file := func(messages ...*descriptorpb.DescriptorProto) *descriptorpb.FileDescriptorProto {
		return &descriptorpb.FileDescriptorProto{
			Name: new("bad/v1/bad.proto"), Package: new("bad.v1"), Syntax: new("proto3"), Dependency: []string{"sluice/mcp/v1/tool.proto"}, MessageType: messages,
			Service: []*descriptorpb.ServiceDescriptorProto{{
				Name: new("Bad"), Method: []*descriptorpb.MethodDescriptorProto{method("Do", ".bad.v1.M0", ".bad.v1.M0", false, &mcpv1.Tool{Name: "bad"})},
			}},
		}
	}
	var bomb []*descriptorpb.DescriptorProto
	for i := range 40 {
		m := &descriptorpb.DescriptorProto{Name: new(fmt.Sprintf("M%d", i))}
		if i < 39 {
			next := fmt.Sprintf(".bad.v1.M%d", i+1)
			m.Field = []*descriptorpb.FieldDescriptorProto{field("a", 1, part, of(next)), field("b", 2, part, of(next))}
		}
		bomb = append(bomb, m)
	}
	forged := file(&descriptorpb.DescriptorProto{Name: new("M0"), Field: []*descriptorpb.FieldDescriptorProto{field("at", 1, part, of(".google.protobuf.Forged"))}})
	forged.Dependency = append(forged.Dependency, "forged.proto")
	for name, c := range map[string]struct {
		files []*descriptorpb.FileDescriptorProto
		says  string
	}{
		"messages that hold one another": {[]*descriptorpb.FileDescriptorProto{file(bomb...)}, "more than 200000 properties"},
		"a name of others": {[]*descriptorpb.FileDescriptorProto{{
			Name: new("forged.proto"), Package: new("google.protobuf"), Syntax: new("proto3"), MessageType: []*descriptorpb.DescriptorProto{{Name: new("Forged")}},
		}, forged}, "forged.proto declares the reserved package google.protobuf"},
	} {
		_, _, err := transport(t, shown(t, c.files...), nil).Open(within(t), who, upstream.Initialize("", "test", "1").Request("", nil))
		if !errors.Is(err, upstream.ErrNeverSent) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
