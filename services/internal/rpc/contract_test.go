package rpc_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	_ "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	_ "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	_ "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	_ "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	_ "github.com/sluice-mesh/sluice/gen/sluice/wasmworker/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

func contracts(t *testing.T) []protoreflect.ServiceDescriptor {
	t.Helper()
	var out []protoreflect.ServiceDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(file.Package()), "sluice.") && file.Package() != "sluice.probe.v1" {
			for i := range file.Services().Len() {
				out = append(out, file.Services().Get(i))
			}
		}
		return true
	})
	slices.SortFunc(out, func(a, b protoreflect.ServiceDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return out
}

func TestContracts_AreAllImported(t *testing.T) {
	t.Parallel()
	var seen []string
	for _, service := range contracts(t) {
		seen = append(seen, filepath.Dir(service.ParentFile().Path()))
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "gen", "sluice", "*", "v*", "*_grpc.pb.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		if dir := filepath.ToSlash(filepath.Dir(file)); !slices.ContainsFunc(seen, func(path string) bool { return strings.HasSuffix(dir, path) }) {
			t.Errorf("%s is imported by no test of the callers: import it here", dir)
		}
	}
	if _, err := os.Stat(files[0]); err != nil {
		t.Error(err)
	}
}

func callersIn(method protoreflect.MethodDescriptor) *authv1.Callers {
	options, _ := method.Options().(*descriptorpb.MethodOptions)
	callers, _ := proto.GetExtension(options, authv1.E_Callers).(*authv1.Callers)
	return callers
}

func TestContracts_EveryMethodStatesCallers(t *testing.T) {
	t.Parallel()
	for _, service := range contracts(t) {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			c := callersIn(method)
			if c.GetUnauthenticated() != (len(c.GetRoles()) == 0 && len(c.GetTokens()) == 0) {
				t.Errorf("%s must either name callers in (sluice.auth.v1.callers), or allow unauthenticated callers", method.FullName())
			}
			if slices.Contains(c.GetRoles(), authv1.Role_ROLE_UNSPECIFIED) || slices.Contains(c.GetTokens(), authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED) {
				t.Errorf("%s names the unspecified", method.FullName())
			}
			if slices.Contains(c.GetTokens(), agent) {
				t.Errorf("%s names agents, whose tokens reach no RPC", method.FullName())
			}
			if c.GetPrincipal() && len(c.GetRoles()) == 0 {
				t.Errorf("%s requires a principal and allows no role that could send one", method.FullName())
			}
			streams := method.IsStreamingClient() || method.IsStreamingServer()
			if c.GetUnauthenticated() && streams {
				t.Errorf("%s is a stream, so its callers must authenticate", method.FullName())
			}
			if carried, _ := proto.GetExtension(method.Options(), authv1.E_Carried).(bool); carried && (streams || len(c.GetRoles()) == 0) {
				t.Errorf("%s is carried, and is a stream, or for no role", method.FullName())
			}
		}
	}
}

// allMethods registers every method of every contract. A method returns UNIMPLEMENTED if its call was admitted.
func allMethods(t *testing.T) serviceFunc {
	t.Helper()
	return func(r grpc.ServiceRegistrar) {
		for _, service := range contracts(t) {
			if service.FullName() == "sluice.mesh.v1.CarrierService" {
				continue // every server has this service
			}
			desc := &grpc.ServiceDesc{ServiceName: string(service.FullName())}
			for i := range service.Methods().Len() {
				method := service.Methods().Get(i)
				name := string(method.Name())
				if method.IsStreamingClient() || method.IsStreamingServer() {
					desc.Streams = append(desc.Streams, grpc.StreamDesc{
						StreamName: name, ClientStreams: method.IsStreamingClient(), ServerStreams: method.IsStreamingServer(),
						Handler: func(any, grpc.ServerStream) error { return errAdmitted() },
					})
					continue
				}
				desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: name, Handler: handlerOf(method)})
			}
			r.RegisterService(desc, nil)
		}
	}
}

func errAdmitted() error { return status.Error(codes.Unimplemented, "let in") }

func handlerOf(method protoreflect.MethodDescriptor) grpc.MethodHandler {
	return func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in, err := newMessage(method.Input())
		if err != nil {
			return nil, err
		}
		if err := dec(in); err != nil {
			return nil, err
		}
		return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: fullName(method)}, func(context.Context, any) (any, error) { return nil, errAdmitted() })
	}
}

func newMessage(of protoreflect.MessageDescriptor) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return nil, err
	}
	return kind.New().Interface(), nil
}

func fullName(method protoreflect.MethodDescriptor) string {
	return "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
}

// try calls a method with an empty request and reports whether the caller was admitted. Checks that follow after the
// caller was admitted return other codes.
func try(ctx context.Context, conn grpc.ClientConnInterface, method protoreflect.MethodDescriptor) (bool, error) {
	in, err := newMessage(method.Input())
	if err != nil {
		return false, err
	}
	out, err := newMessage(method.Output())
	if err != nil {
		return false, err
	}
	if method.IsStreamingClient() || method.IsStreamingServer() {
		stream, serr := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, fullName(method))
		if serr != nil {
			return false, serr
		}
		if err := stream.CloseSend(); err != nil {
			return false, err
		}
		err = stream.RecvMsg(out)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
	} else {
		err = conn.Invoke(ctx, fullName(method), in, out)
	}
	switch status.Code(err) {
	case codes.Unimplemented, codes.InvalidArgument:
		return true, nil
	default:
		return false, err
	}
}

// Case I5. A contract lists the services and the tokens that may call a method. The method admits these callers and no
// others.
func TestServer_AdmitsOnlyCallersInContract(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, allMethods(t))
	roles := s.paths()[0]
	for _, service := range contracts(t) {
		t.Run(string(service.FullName()), func(t *testing.T) {
			t.Parallel()
			// Each subtest makes separate connections, because an unauthenticated connection is closed after 10 s and other
			// tests may take longer.
			tokens := make(map[authv1.TokenRole]grpc.ClientConnInterface)
			for number := range authv1.TokenRole_name {
				tokens[authv1.TokenRole(number)] = s.person(t, tokenText(authv1.TokenRole(number)))
			}
			stranger := s.person(t, "")
			for i := range service.Methods().Len() {
				method := service.Methods().Get(i)
				c := callersIn(method)
				if c.GetUnauthenticated() {
					if in, err := try(timeoutContext(t), stranger, method); !in {
						t.Errorf("%s called without a token: %v", method.Name(), err)
					}
					continue
				}
				for number := range authv1.Role_name {
					role := authv1.Role(number)
					if role == authv1.Role_ROLE_UNSPECIFIED {
						continue
					}
					in, err := try(timeoutContext(t), roles.as(t, role, false), method)
					named, want := slices.Contains(c.GetRoles(), role), "CALLER_REFUSED"
					if named && c.GetPrincipal() {
						named, want = false, "PRINCIPAL_REQUIRED"
					}
					if in != named || !in && rpc.Reason(err) != want {
						t.Errorf("%s called by the role %s: admitted is %t, want %t: %v", method.Name(), role, in, named, err)
					}
				}
				for role, conn := range tokens {
					in, err := try(timeoutContext(t), conn, method)
					if named := slices.Contains(c.GetTokens(), role); in != named || !in && rpc.Reason(err) != "CALLER_REFUSED" {
						t.Errorf("%s called with a token of %s: admitted is %t, want %t: %v", method.Name(), role, in, named, err)
					}
					if !in {
						checkRefusal(t, err, role, c.GetTokens())
					}
				}
				if in, err := try(timeoutContext(t), stranger, method); in || rpc.Reason(err) != "UNAUTHENTICATED" {
					t.Errorf("%s called without a token: admitted is %t: %v", method.Name(), in, err)
				}
			}
		})
	}
}

// The contract of a service from another project does not list callers. Such a service can be registered only if it is
// in foreignServices.
func TestServer_RefusesServiceWithoutCallers(t *testing.T) {
	t.Parallel()
	server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: newTokens(t), Log: discard()})
	if err != nil {
		t.Fatal(err)
	}
	err = server.Add(policy, serviceFunc(func(r grpc.ServiceRegistrar) {
		r.RegisterService(&grpc.ServiceDesc{ServiceName: "envoy.service.ratelimit.v3.RateLimitService"}, nil)
	}))
	if err == nil || !strings.Contains(err.Error(), "envoy.service.ratelimit.v3.RateLimitService") {
		t.Errorf("a foreign service was added: %v", err)
	}
}

// Reflection returns the contracts to operators and viewers, but not to holders of other tokens or unauthenticated
// callers.
func TestReflection_IsForOperatorsAndViewers(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	for role, want := range map[authv1.TokenRole]codes.Code{
		operator: codes.OK, authv1.TokenRole_TOKEN_ROLE_VIEWER: codes.OK,
		agent: codes.PermissionDenied, authv1.TokenRole_TOKEN_ROLE_APPROVER: codes.PermissionDenied,
	} {
		for _, version := range []string{"v1", "v1alpha"} {
			if err := reflect(timeoutContext(t), s.person(t, tokenText(role)), version); status.Code(err) != want {
				t.Errorf("%s, %s: %v, want %v", role, version, err, want)
			}
		}
	}
	if err := reflect(timeoutContext(t), s.person(t, ""), "v1"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if err := reflect(timeoutContext(t), s.paths()[0].as(t, gateway, true), "v1"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a role: %v", err)
	}
	forged := metadata.AppendToOutgoingContext(timeoutContext(t), "grpc-internal-auth", "true")
	if err := reflect(forged, s.person(t, ""), "v1"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token, with metadata: %v", err)
	}
}

// checkRefusal checks that a refusal names the role of the token that was sent, and exactly those roles whose tokens
// would be accepted.
func checkRefusal(t *testing.T, err error, sent authv1.TokenRole, may []authv1.TokenRole) {
	t.Helper()
	name := func(r authv1.TokenRole) string { return strings.ToLower(strings.TrimPrefix(r.String(), "TOKEN_ROLE_")) }
	var want []string
	for _, role := range may {
		want = append(want, name(role))
	}
	facts := rpc.Facts(err)
	got := strings.FieldsFunc(facts["needs"], func(r rune) bool { return r == ',' })
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || facts["role"] != name(sent) || facts["token"] == "" {
		t.Errorf("with a token of %s: the error has %v, want the needed roles %v", sent, facts, want)
	}
}
