package rpc

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// callers says which callers may call a method.
type callers struct {
	// anyone allows unauthenticated callers: for health only.
	anyone bool
	roles  map[authv1.Role]bool
	tokens map[authv1.TokenRole]bool
	// principal requires a role to say on whose behalf it calls.
	principal bool
	// lastKnown accepts a token that was valid when the tokens were last updated.
	lastKnown bool
}

// smallRequest is the largest request, in bytes, of a method whose contract states no maximum.
const smallRequest = 64 << 10

// terms are the conditions under which a method may be called. No caller satisfies the zero value.
type terms struct {
	callers
	// request is the largest request, in bytes; of a streaming method, the largest message.
	request int
	// lasts reports whether the method is a stream, whose calls have no deadline.
	lasts bool
	// carried reports whether calls may be carried: see [Conn].
	carried bool
}

// foreignServices are the gRPC services whose contracts belong to other projects and can't have the callers option.
// The inner keys are methods; the empty name stands for all others. All other services state their callers in their
// contract; a test checks both. Streams require authentication because they last.
var foreignServices = map[string]map[string]callers{
	"grpc.health.v1.Health": {
		"":      {anyone: true},
		"Watch": people(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER),
	},
	"grpc.reflection.v1.ServerReflection":      {"": people(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER)},
	"grpc.reflection.v1alpha.ServerReflection": {"": people(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER)},
}

func people(roles ...authv1.TokenRole) callers {
	c := callers{tokens: make(map[authv1.TokenRole]bool)}
	for _, r := range roles {
		c.tokens[r] = true
	}
	return c
}

// tokenRoles returns the names of the roles whose tokens may call, the one with the fewest rights first.
func (c callers) tokenRoles() (out []string) {
	for _, role := range slices.Backward(slices.Sorted(maps.Keys(c.tokens))) {
		out = append(out, enum.Name(role))
	}
	return out
}

// termsOf returns the terms of each method of a service, by full method name ("/package.Service/Method"). A method of
// the mesh that does not state its callers has no callers.
func termsOf(service string) (map[string]terms, error) {
	if foreign, ok := foreignServices[service]; ok {
		table := make(map[string]terms, len(foreign))
		for method, c := range foreign {
			table["/"+service+"/"+method] = terms{callers: c, request: smallRequest, lasts: !c.anyone}
		}
		return table, nil
	}
	sd, err := contractOf(service)
	if err != nil {
		return nil, err
	}
	table := make(map[string]terms, sd.Methods().Len())
	for i := range sd.Methods().Len() {
		md := sd.Methods().Get(i)
		table["/"+service+"/"+string(md.Name())] = terms{
			callers: optionOf(md), request: requestOf(md), lasts: md.IsStreamingClient() || md.IsStreamingServer(), carried: isCarried(md),
		}
	}
	return table, nil
}

// contractOf returns a service's contract.
func contractOf(service string) (protoreflect.ServiceDescriptor, error) {
	desc, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("find the contract of %s: %w", service, err)
	}
	sd, ok := desc.(protoreflect.ServiceDescriptor)
	if !ok {
		return nil, fmt.Errorf("%s is not a service", service)
	}
	return sd, nil
}

func optionOf(md protoreflect.MethodDescriptor) callers {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_Callers) {
		return callers{}
	}
	option, ok := proto.GetExtension(opts, authv1.E_Callers).(*authv1.Callers)
	if !ok {
		return callers{}
	}
	c := people(option.GetTokens()...)
	c.principal, c.lastKnown = option.GetPrincipal(), option.GetLastKnownTokens()
	c.roles = make(map[authv1.Role]bool)
	for _, r := range option.GetRoles() {
		c.roles[r] = true
	}
	delete(c.roles, authv1.Role_ROLE_UNSPECIFIED)
	delete(c.tokens, authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED)
	delete(c.tokens, authv1.TokenRole_TOKEN_ROLE_AGENT) // agent tokens may call no RPC, even if a contract says so
	return c
}

// requestOf returns the largest request that a method's contract allows, in bytes.
func requestOf(md protoreflect.MethodDescriptor) int {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_MaxRequestBytes) {
		return smallRequest
	}
	most, _ := proto.GetExtension(opts, authv1.E_MaxRequestBytes).(uint32)
	return min(int(most), maxRequest)
}

// isCarried reports whether a method's contract allows its calls to be carried.
func isCarried(md protoreflect.MethodDescriptor) bool {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_Carried) || md.IsStreamingClient() || md.IsStreamingServer() {
		return false
	}
	carried, _ := proto.GetExtension(opts, authv1.E_Carried).(bool)
	return carried
}

// serviceOf returns the service of a full method name.
func serviceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}
