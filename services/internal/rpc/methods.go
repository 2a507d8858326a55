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

// callers specifies which callers may call a method.
type callers struct {
	// anyone is true if unauthenticated callers may call the method. They may call the methods of the health service, and
	// the methods with which people get a credential.
	anyone bool
	roles  map[authv1.Role]bool
	tokens map[authv1.TokenRole]bool
	// principal is true if a service that calls the method must send the principal on whose behalf it calls.
	principal bool
	// lastKnown is true if the method accepts a token that was valid when the set of tokens was last confirmed, even if
	// the set is stale.
	lastKnown bool
}

// smallRequest is the maximum size, in bytes, of a request if the options of the method do not set a maximum.
const smallRequest = 64 << 10

// methodRules contains the conditions for a call to a method. No caller satisfies the zero value.
type methodRules struct {
	callers
	// request is the maximum size in bytes of a request, or of each message of a stream.
	request int
	// isStream is true if the method is a streaming method. Streams have no deadline.
	isStream bool
	// carried is true if calls to the method may be carried on a shared stream. See [Conn].
	carried bool
}

// foreignServices contains the gRPC services that other projects define. Their methods therefore can't have the option
// (sluice.auth.v1.callers). The keys of the inner maps are methods. The empty key applies to all other methods of the
// service. Streams require authentication, because they stay open. A test checks that the methods of all other services
// have the option.
var foreignServices = map[string]map[string]callers{
	"grpc.health.v1.Health": {
		"":      {anyone: true},
		"Watch": tokenCallers(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER),
	},
	"grpc.reflection.v1.ServerReflection":      {"": tokenCallers(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER)},
	"grpc.reflection.v1alpha.ServerReflection": {"": tokenCallers(authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_VIEWER)},
}

func tokenCallers(roles ...authv1.TokenRole) callers {
	c := callers{tokens: make(map[authv1.TokenRole]bool)}
	for _, r := range roles {
		c.tokens[r] = true
	}
	return c
}

// tokenRoles returns the names of the token roles that may call the method. The role with the fewest permissions is
// first.
func (c callers) tokenRoles() (out []string) {
	for _, role := range slices.Backward(slices.Sorted(maps.Keys(c.tokens))) {
		out = append(out, enum.Name(role))
	}
	return out
}

// methodTerms returns the rules for each method of a service, by full method name ("/package.Service/Method"). If a
// method of the mesh does not have the option (sluice.auth.v1.callers), no caller may call the method.
func methodTerms(service string) (map[string]methodRules, error) {
	if foreign, ok := foreignServices[service]; ok {
		table := make(map[string]methodRules, len(foreign))
		for method, c := range foreign {
			table["/"+service+"/"+method] = methodRules{callers: c, request: smallRequest, isStream: !c.anyone}
		}
		return table, nil
	}
	sd, err := serviceDescriptor(service)
	if err != nil {
		return nil, err
	}
	table := make(map[string]methodRules, sd.Methods().Len())
	for i := range sd.Methods().Len() {
		md := sd.Methods().Get(i)
		rules := methodRules{callers: callersOption(md), request: maxRequestOf(md), isStream: md.IsStreamingClient() || md.IsStreamingServer(), carried: isCarried(md)}
		if rules.anyone && rules.isStream {
			return nil, fmt.Errorf("%s is a stream, so its callers must authenticate", md.FullName())
		}
		table["/"+service+"/"+string(md.Name())] = rules
	}
	return table, nil
}

func serviceDescriptor(service string) (protoreflect.ServiceDescriptor, error) {
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

func callersOption(md protoreflect.MethodDescriptor) callers {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_Callers) {
		return callers{}
	}
	option, ok := proto.GetExtension(opts, authv1.E_Callers).(*authv1.Callers)
	if !ok {
		return callers{}
	}
	c := tokenCallers(option.GetTokens()...)
	c.principal, c.lastKnown, c.anyone = option.GetPrincipal(), option.GetLastKnownTokens(), option.GetUnauthenticated()
	c.roles = make(map[authv1.Role]bool)
	for _, r := range option.GetRoles() {
		c.roles[r] = true
	}
	delete(c.roles, authv1.Role_ROLE_UNSPECIFIED)
	delete(c.tokens, authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED)
	delete(c.tokens, authv1.TokenRole_TOKEN_ROLE_AGENT) // agents' tokens may not call any RPC, even if the option names them
	return c
}

// maxRequestOf returns the maximum size, in bytes, of a request according to the options of the method.
func maxRequestOf(md protoreflect.MethodDescriptor) int {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_MaxRequestBytes) {
		return smallRequest
	}
	most, _ := proto.GetExtension(opts, authv1.E_MaxRequestBytes).(uint32)
	return min(int(most), maxRequest)
}

// isCarried reports whether the options of a method allow calls to be carried on a shared stream.
func isCarried(md protoreflect.MethodDescriptor) bool {
	opts, ok := md.Options().(*descriptorpb.MethodOptions)
	if !ok || !proto.HasExtension(opts, authv1.E_Carried) || md.IsStreamingClient() || md.IsStreamingServer() {
		return false
	}
	carried, _ := proto.GetExtension(opts, authv1.E_Carried).(bool)
	return carried
}

func serviceOf(method string) string {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	return service
}
