package rpctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const callTimeout = 10 * time.Second

// A caller is one kind of caller, such as a service or a person with a certain token.
type caller struct {
	name   string
	conn   grpc.ClientConnInterface
	behalf *identityv1.Principal
	// refusal returns the code with which a method must refuse the caller according to the method's options, or OK if the
	// options allow the caller.
	refusal func(*authv1.Callers) codes.Code
}

// CheckCallers calls every method of every service in a protobuf package, as every kind of caller. The kinds are each
// service of the mesh with and without a principal, each kind of token, no token, and an unknown token. The requests
// satisfy the constraints of the methods. A method must refuse callers that its options do not list. Other callers must
// receive UNIMPLEMENTED, except from the methods in implemented, which contains full names.
func (s *Server) CheckCallers(t *testing.T, contracts protoreflect.FullName, implemented ...protoreflect.FullName) {
	t.Helper()
	callers := s.callers(t)
	missing := slices.Clone(implemented)
	methods, err := methodsOf(contracts)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range methods {
		name := method.FullName()
		missing = slices.DeleteFunc(missing, func(known protoreflect.FullName) bool { return known == name })
		t.Run(string(name), func(t *testing.T) {
			for _, c := range callers {
				c.check(t, method, slices.Contains(implemented, name))
			}
		})
	}
	if len(missing) > 0 {
		t.Errorf("%s has no such methods: %v", contracts, missing)
	}
}

// methodsOf returns the methods of a protobuf package. It returns an error if there are none, because otherwise every
// check would succeed for a misspelled package.
func methodsOf(contracts protoreflect.FullName) ([]protoreflect.MethodDescriptor, error) {
	var out []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage(contracts, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				out = append(out, file.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
	if len(out) == 0 {
		return nil, fmt.Errorf("the package %s has no methods", contracts)
	}
	return out, nil
}

func (s *Server) callers(t *testing.T) []caller {
	t.Helper()
	var out []caller
	for _, role := range roles() {
		refusal := func(c *authv1.Callers, spoke bool) codes.Code {
			switch {
			case !slices.Contains(c.GetRoles(), role):
				return codes.PermissionDenied
			case c.GetPrincipal() && !spoke:
				return codes.Unauthenticated
			default:
				return codes.OK
			}
		}
		out = append(out, caller{
			name: authn.RoleName(role), conn: s.roles[role],
			refusal: func(c *authv1.Callers) codes.Code { return refusal(c, false) },
		})
		if authn.Signs(role) {
			out = append(out, caller{
				name: authn.RoleName(role) + " on behalf of a principal", conn: s.roles[role], behalf: testPrincipal(role),
				refusal: func(c *authv1.Callers) codes.Code { return refusal(c, true) },
			})
		}
	}
	return append(out, s.persons(t)...)
}

func (s *Server) persons(t *testing.T) []caller {
	t.Helper()
	var out []caller
	for _, role := range tokenRoles() {
		name := enum.Name(role)
		out = append(out, caller{name: "the " + name, conn: s.Person(t, name), refusal: func(c *authv1.Callers) codes.Code {
			if !slices.Contains(c.GetTokens(), role) {
				return codes.PermissionDenied
			}
			return codes.OK
		}})
	}
	unknown := func(*authv1.Callers) codes.Code { return codes.Unauthenticated }
	return append(out,
		caller{name: "no token", conn: s.Person(t, ""), refusal: unknown},
		caller{name: "an unknown token", conn: s.Person(t, "stranger"), refusal: unknown})
}

// testPrincipal returns a principal on whose behalf the service with the given mesh role may call. The service must be
// one that signs principals.
func testPrincipal(role authv1.Role) *identityv1.Principal {
	if role == authv1.Role_ROLE_POLICY {
		p := Principal("default", "operator")
		p.Role = authv1.TokenRole_TOKEN_ROLE_OPERATOR
		return p
	}
	p := Principal("default", "agent:default/1")
	p.Chain = []*identityv1.Principal{Principal("default", "creator")}
	return p
}

func (c *caller) check(t *testing.T, method protoreflect.MethodDescriptor, implemented bool) {
	t.Helper()
	option, ok := proto.GetExtension(method.Options(), authv1.E_Callers).(*authv1.Callers)
	if !ok {
		t.Fatalf("%s does not state its callers", method.FullName())
	}
	err := c.call(t, method)
	if status.Code(err) == codes.Unavailable && rpc.Reason(err) == "" { // the server closes unauthenticated connections after 10 s
		err = c.call(t, method)
	}
	got, refused := status.Code(err), c.refusal(option)
	if option.GetUnauthenticated() {
		refused = codes.OK
	}
	switch {
	case refused != codes.OK:
		if got != refused {
			t.Errorf("%s: got %v, want %v", c.name, err, refused)
		}
	case !implemented:
		if got != codes.Unimplemented {
			t.Errorf("%s: got %v, want UNIMPLEMENTED", c.name, err)
		}
	case got == codes.PermissionDenied && rpc.Reason(err) == "CALLER_REFUSED", got == codes.Unauthenticated, got == codes.Unimplemented, got == codes.Internal:
		t.Errorf("%s: got %v, want to be answered", c.name, err)
	}
}

// call calls a method. For a stream, it waits for the first message.
func (c *caller) call(t *testing.T, method protoreflect.MethodDescriptor) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	if c.behalf != nil {
		ctx = authn.OnBehalfOf(ctx, c.behalf)
	}
	path := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	req, resp := Request(t, method), message(t, method.Output())
	if !method.IsStreamingClient() && !method.IsStreamingServer() {
		return c.conn.Invoke(ctx, path, req, resp)
	}
	desc := &grpc.StreamDesc{ClientStreams: method.IsStreamingClient(), ServerStreams: method.IsStreamingServer()}
	stream, err := c.conn.NewStream(ctx, desc, path)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) { // on EOF, RecvMsg returns the reason
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(resp)
}

func message(t *testing.T, desc protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	found, err := protoregistry.GlobalTypes.FindMessageByName(desc.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return found.New().Interface()
}
