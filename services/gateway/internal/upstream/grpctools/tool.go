package grpctools

import (
	"errors"
	"fmt"
	"regexp"

	"github.com/go-json-experiment/json"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
)

// A tool is a method with the option (sluice.mcp.v1.tool). It is immutable.
type tool struct {
	name string
	// method is the full gRPC name of the method, such as /package.Service/Method.
	method string
	// streams is true if the method may send progress messages before the response.
	streams bool
	in, out protoreflect.MessageType
	// success is true if a member "success" with the value true is added to the result.
	success bool
	// definition is the tool's element in the result of tools/list.
	definition []byte
}

// toolName is the pattern for tool names. The comment of the option contains the same pattern.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

const (
	// maxTools is the maximum number of tools of a server. maxList is the maximum total length, in bytes, of their
	// definitions.
	maxTools = 10_000
	maxList  = 8 << 20
)

// A set contains the tools of a server. It must not be changed after the last call to add.
type set struct {
	// listed contains the tools in the order of their services and methods.
	listed []*tool
	named  map[string]*tool
	// schemas is the number of properties and enum names that may still be added to the schemas. bytes is the total
	// length of the definitions.
	schemas, bytes int
}

func newSet() *set { return &set{named: make(map[string]*tool), schemas: maxSchemas} }

// add adds the tools of a service. types contains the Go types of the service's messages, or is nil if only descriptors
// are known.
func (s *set) add(service protoreflect.ServiceDescriptor, types *protoregistry.Types) error {
	methods := service.Methods()
	for i := range methods.Len() {
		method := methods.Get(i)
		opts, ok := method.Options().(*descriptorpb.MethodOptions)
		if !ok || !proto.HasExtension(opts, mcpv1.E_Tool) {
			continue
		}
		option, ok := proto.GetExtension(opts, mcpv1.E_Tool).(*mcpv1.Tool)
		if !ok {
			return fmt.Errorf("the option of %s has an unexpected type", method.FullName())
		}
		if option.GetUnserved() {
			continue
		}
		t, err := newTool(method, option, types, &s.schemas)
		if err != nil {
			return fmt.Errorf("the tool %q of %s: %w", option.GetName(), method.FullName(), err)
		}
		if s.named[t.name] != nil {
			return fmt.Errorf("the tool %q exists twice: as %s and as %s", t.name, s.named[t.name].method, t.method)
		}
		if len(s.listed) == maxTools {
			return fmt.Errorf("there are more than %d tools", maxTools)
		}
		if s.bytes += len(t.definition); s.bytes > maxList {
			return fmt.Errorf("the definitions of the tools have more than %d bytes", maxList)
		}
		s.named[t.name] = t
		s.listed = append(s.listed, t)
	}
	return nil
}

func newTool(method protoreflect.MethodDescriptor, option *mcpv1.Tool, types *protoregistry.Types, budget *int) (*tool, error) {
	switch {
	case !toolName.MatchString(option.GetName()):
		return nil, fmt.Errorf("the name does not match %s", toolName)
	case method.IsStreamingClient():
		return nil, errors.New("a method with a stream of requests can't be a tool")
	}
	t := &tool{
		name:    option.GetName(),
		method:  "/" + string(method.Parent().FullName()) + "/" + string(method.Name()),
		streams: method.IsStreamingServer(),
		success: option.GetSaysSuccess(),
	}
	input, err := inputSchema(method.Input(), budget)
	if err != nil {
		return nil, err
	}
	output, err := outputSchema(method.Output(), budget)
	if err != nil {
		return nil, err
	}
	if properties, ok := output["properties"].(schema); ok && t.success {
		if properties["success"] != nil {
			return nil, errors.New("its answer already has a field `success`")
		}
		properties["success"] = schema{"const": true}
	}
	definition := map[string]any{"name": t.name, "inputSchema": input, "outputSchema": output}
	if title := option.GetTitle(); title != "" {
		definition["title"] = title
	}
	if description := option.GetDescription(); description != "" {
		definition["description"] = description
	}
	if hints := hintsOf(option.GetHints()); len(hints) > 0 {
		definition["annotations"] = hints
	}
	if t.in, err = typeOf(method.Input(), types); err != nil {
		return nil, err
	}
	if t.out, err = typeOf(method.Output(), types); err != nil {
		return nil, err
	}
	t.definition, err = json.Marshal(definition, json.Deterministic(true))
	return t, err
}

func typeOf(md protoreflect.MessageDescriptor, types *protoregistry.Types) (protoreflect.MessageType, error) {
	if types == nil {
		return dynamicpb.NewMessageType(md), nil
	}
	return types.FindMessageByName(md.FullName())
}

func hintsOf(h *mcpv1.Hints) map[string]bool {
	out := make(map[string]bool)
	if h == nil {
		return out
	}
	for name, hint := range map[string]*bool{
		"readOnlyHint": h.ReadOnly, "destructiveHint": h.Destructive, "idempotentHint": h.Idempotent, "openWorldHint": h.OpenWorld,
	} {
		if hint != nil {
			out[name] = *hint
		}
	}
	return out
}

// descriptionOf returns the description of a field for the model, or "" if the protobuf definition has none.
func descriptionOf(fd protoreflect.FieldDescriptor) string {
	opts, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok {
		return ""
	}
	text, _ := proto.GetExtension(opts, mcpv1.E_Description).(string)
	return text
}
