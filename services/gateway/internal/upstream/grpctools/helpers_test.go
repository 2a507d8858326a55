package grpctools_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/grpctools"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
)

// soon is a timeout that is much longer than any call in these tests takes.
const soon = 30 * time.Second

func field(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, more ...func(*descriptorpb.FieldDescriptorProto)) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{
		Name: &name, Number: &number, Type: &kind, Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	for _, m := range more {
		m(f)
	}
	return f
}

func repeated(f *descriptorpb.FieldDescriptorProto) {
	f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
}

func of(name string) func(*descriptorpb.FieldDescriptorProto) {
	return func(f *descriptorpb.FieldDescriptorProto) { f.TypeName = &name }
}

func in(oneof int32) func(*descriptorpb.FieldDescriptorProto) {
	return func(f *descriptorpb.FieldDescriptorProto) { f.OneofIndex = &oneof }
}

func option(x protoreflect.ExtensionType, v any) func(*descriptorpb.FieldDescriptorProto) {
	return func(f *descriptorpb.FieldDescriptorProto) {
		if f.Options == nil {
			f.Options = new(descriptorpb.FieldOptions)
		}
		proto.SetExtension(f.Options, x, v)
	}
}

func rules(text *validatepb.FieldRules) func(*descriptorpb.FieldDescriptorProto) {
	return option(validatepb.E_Field, text)
}

func method(name, in, out string, streams bool, t *mcpv1.Tool) *descriptorpb.MethodDescriptorProto {
	m := &descriptorpb.MethodDescriptorProto{Name: &name, InputType: &in, OutputType: &out, ServerStreaming: &streams}
	if t != nil {
		m.Options = new(descriptorpb.MethodOptions)
		proto.SetExtension(m.Options, mcpv1.E_Tool, t)
	}
	return m
}

func contract(t *testing.T) protoreflect.FileDescriptor {
	t.Helper()
	const (
		text  = descriptorpb.FieldDescriptorProto_TYPE_STRING
		int32 = descriptorpb.FieldDescriptorProto_TYPE_INT32
		int64 = descriptorpb.FieldDescriptorProto_TYPE_INT64
		enum  = descriptorpb.FieldDescriptorProto_TYPE_ENUM
		part  = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		raw   = descriptorpb.FieldDescriptorProto_TYPE_BYTES
		flag  = descriptorpb.FieldDescriptorProto_TYPE_BOOL
		real  = descriptorpb.FieldDescriptorProto_TYPE_DOUBLE
	)
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("notes/v1/notes.proto"), Package: new("notes.v1"), Syntax: new("proto3"),
		Dependency: []string{"sluice/mcp/v1/tool.proto", "buf/validate/validate.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto", "google/protobuf/any.proto"},
		EnumType: []*descriptorpb.EnumDescriptorProto{{
			Name: new("Kind"),
			Value: []*descriptorpb.EnumValueDescriptorProto{
				{Name: new("KIND_UNSPECIFIED"), Number: new(int32Of(0))}, {Name: new("KIND_SHORT_NOTE"), Number: new(int32Of(1))}, {Name: new("KIND_LONG"), Number: new(int32Of(2))},
			},
		}},
		MessageType: []*descriptorpb.DescriptorProto{
			{
				Name: new("Note"),
				Field: []*descriptorpb.FieldDescriptorProto{
					field("note_id", 1, text, option(mcpv1.E_Description, "Which note."), rules(validatepb.FieldRules_builder{
						Required: new(true), String: validatepb.StringRules_builder{Pattern: new("^[a-z]{1,8}$")}.Build(),
					}.Build())),
					field("body", 2, text),
					field("kind", 3, enum, of(".notes.v1.Kind")),
					field("tags", 4, text, repeated, rules(validatepb.FieldRules_builder{
						Repeated: validatepb.RepeatedRules_builder{MaxItems: new(uint64(3))}.Build(),
					}.Build())),
					field("at", 5, part, of(".google.protobuf.Timestamp")),
					field("size", 6, int64),
					field("extra", 7, text, option(mcpv1.E_Json, true)),
					field("data", 8, raw),
					field("level", 9, int32, rules(validatepb.FieldRules_builder{
						Int32: validatepb.Int32Rules_builder{Gte: new(int32Of(1)), Lte: new(int32Of(9))}.Build(),
					}.Build())),
					field("done", 10, flag),
					field("shelf", 11, text, in(0)),
					field("row", 12, int32, in(0)),
					field("inside", 13, part, of(".notes.v1.Note")),
					field("weight", 14, real),
					field("maybe", 15, part, of(".google.protobuf.Int32Value")),
					field("any", 16, part, of(".google.protobuf.Any")),
				},
				OneofDecl: []*descriptorpb.OneofDescriptorProto{{Name: new("place")}},
			},
			{
				Name: new("Step"),
				Field: []*descriptorpb.FieldDescriptorProto{
					field("progress", 1, part, of(".sluice.mcp.v1.Progress")), field("body", 2, text),
				},
			},
		},
		Service: []*descriptorpb.ServiceDescriptorProto{{
			Name: new("Notes"),
			Method: []*descriptorpb.MethodDescriptorProto{
				method("Write", ".notes.v1.Note", ".notes.v1.Note", false, &mcpv1.Tool{
					Name: "note_write", Title: "Write", Description: "Writes a note.", Category: mcpv1.Category_CATEGORY_WRITE,
					Hints: &mcpv1.Hints{Destructive: new(false)},
				}),
				method("Watch", ".notes.v1.Note", ".notes.v1.Step", true, &mcpv1.Tool{Name: "note_watch"}),
				method("Hidden", ".notes.v1.Note", ".notes.v1.Note", false, nil),
			},
		}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func int32Of(n int32) int32 { return n }

type notes struct {
	file   protoreflect.FileDescriptor
	server *grpc.Server
	addr   string

	mu sync.Mutex
	// got contains the requests that the server has received. headers contains the headers of the last request.
	got     []protoreflect.Message
	headers metadata.MD
	// write answers calls to Write, and watch answers calls to Watch. If write is nil, Write returns its request.
	write func(ctx context.Context, note protoreflect.Message) (protoreflect.Message, error)
	watch func(note protoreflect.Message, send func(progress float64, body string) error) error
}

func newNotes(t *testing.T) *notes {
	t.Helper()
	n := &notes{file: contract(t), server: grpc.NewServer()}
	service := n.file.Services().ByName("Notes")
	n.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: string(service.FullName()), HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Write", Handler: n.serveWrite}, {MethodName: "Hidden", Handler: n.serveWrite}},
		Streams: []grpc.StreamDesc{{StreamName: "Watch", Handler: n.serveWatch, ServerStreams: true}},
	}, n)
	files := new(protoregistry.Files)
	if err := files.RegisterFile(n.file); err != nil {
		t.Fatal(err)
	}
	reflectionv1.RegisterServerReflectionServer(n.server, reflection.NewServerV1(reflection.ServerOptions{
		Services: n.server, DescriptorResolver: both{files}, ExtensionResolver: protoregistry.GlobalTypes,
	}))
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = lis.Addr().String()
	go func() { _ = n.server.Serve(lis) }()
	t.Cleanup(n.server.Stop)
	return n
}

// both resolves names first in the test's protobuf definition and then in this program's definitions.
type both struct{ own *protoregistry.Files }

func (b both) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if file, err := b.own.FindFileByPath(path); err == nil {
		return file, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (b both) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if desc, err := b.own.FindDescriptorByName(name); err == nil {
		return desc, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}

func (n *notes) message(name protoreflect.Name) *dynamicpb.Message {
	return dynamicpb.NewMessage(n.file.Messages().ByName(name))
}

func (n *notes) take(ctx context.Context, m protoreflect.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = append(n.got, m)
	n.headers, _ = metadata.FromIncomingContext(ctx)
}

func (n *notes) serveWrite(_ any, ctx context.Context, //nolint:revive // the order of gRPC
	decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	note := n.message("Note")
	if err := decode(note); err != nil {
		return nil, err
	}
	n.take(ctx, note)
	if n.write == nil {
		return note, nil
	}
	out, err := n.write(ctx, note)
	if err != nil {
		return nil, err
	}
	return out.Interface(), nil
}

func (n *notes) serveWatch(_ any, stream grpc.ServerStream) error {
	note := n.message("Note")
	if err := stream.RecvMsg(note); err != nil {
		return err
	}
	n.take(stream.Context(), note)
	return n.watch(note, func(progress float64, body string) error {
		step := n.message("Step")
		fields := step.Descriptor().Fields()
		if progress > 0 {
			p := step.Mutable(fields.ByName("progress")).Message()
			p.Set(p.Descriptor().Fields().ByName("progress"), protoreflect.ValueOfFloat64(progress))
			p.Set(p.Descriptor().Fields().ByName("message"), protoreflect.ValueOfString(body))
		} else {
			step.Set(fields.ByName("body"), protoreflect.ValueOfString(body))
		}
		return stream.SendMsg(step)
	})
}

func transport(t *testing.T, addr string, headers map[string]string, secrets ...string) upstream.Transport {
	t.Helper()
	conn, err := grpctools.Dial(addr, "", true)
	if err != nil {
		t.Fatal(err)
	}
	over, err := grpctools.New(grpctools.Config{Name: "notes", Headers: headers, Secrets: secrets}, grpctools.Deps{Conn: conn, Close: conn.Close, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := over.Close(); err != nil {
			t.Error(err)
		}
	})
	return upstreamtest.Roomy{Transport: over, All: upstreamtest.Answers()}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, over upstream.Transport) upstream.Conn {
	t.Helper()
	conn, answer, err := over.Open(within(t), who, upstream.Initialize("2025-11-25", "test", "1").Request("", nil))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(answer.Message.Raw); !strings.Contains(got, `"protocolVersion":"2025-11-25"`) || !strings.Contains(got, `"tools":{}`) {
		t.Errorf("initialize answers %s", got)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func request(t *testing.T, text string) upstream.Request {
	t.Helper()
	m, err := jsonrpc.Parse([]byte(text), jsonrpc.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return upstream.Request{Message: m, TraceParent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}
}

func call(t *testing.T, tool, arguments string) upstream.Request {
	t.Helper()
	return request(t, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+`,"_meta":{"progressToken":"p"}}}`)
}

type toolResult struct {
	Content []struct {
		Type, Text string
	}
	StructuredContent json.RawMessage
	IsError           bool
	Meta              map[string]map[string]string `json:"_meta"`
}

func resultOf(t *testing.T, a upstream.Answer) toolResult {
	t.Helper()
	var r toolResult
	if err := json.Unmarshal(a.Message.Result.Of(a.Message.Raw), &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("%s: %v", a.Message.Raw, err)
	}
	return r
}
