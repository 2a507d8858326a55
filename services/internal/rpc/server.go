// Package rpc creates all gRPC servers and clients of the mesh. Every service has the same authentication,
// authorization, validation, deadlines, tracing and error format, both over the network and inside one process.
package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	meshv1 "github.com/sluice-mesh/sluice/gen/sluice/mesh/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/connlimit"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
)

const (
	// drainTimeout is how long calls in flight may continue after the server begins to stop.
	drainTimeout   = 20 * time.Second
	healthInterval = time.Second
	// maxMessage is the maximum size of an answer, in bytes.
	maxMessage = 8 << 20
	// maxStreams is the maximum number of concurrent calls on a connection. The client delays further calls.
	// Unauthenticated connections have a lower maximum.
	maxStreams = 1024
	// maxHeaders is the maximum size in bytes of a call's header. As in HTTP/2, the size is that of the decoded header,
	// plus 32 bytes for each field. The largest header contains a principal with 256 groups whose names have the
	// maximum length.
	maxHeaders = 96 << 10
	// window is the number of bytes of a message that may arrive before the server reads it.
	window = 64 << 10
	// handshakeTimeout is the maximum duration of the TLS and HTTP/2 handshakes. idleTimeout is how long a connection
	// without a call stays open.
	handshakeTimeout = 5 * time.Second
	idleTimeout      = 5 * time.Minute
)

// A Service implements the gRPC services of one mesh role, such as policy.
type Service interface {
	// Register registers all gRPC services of the mesh role.
	Register(grpc.ServiceRegistrar)
}

// A HealthChecker is a [Service] that may be temporarily unable to serve.
type HealthChecker interface {
	// Health returns the reason why the service can't serve, or nil if it can. It is called every second and must return
	// quickly.
	Health(ctx context.Context) error
}

// ServerConfig configures a [Server].
type ServerConfig struct {
	// TLS is the TLS configuration of the listeners. If it is nil, the listeners do not use TLS, which is allowed only
	// on loopback.
	TLS *tls.Config
	// Reflection enables gRPC server reflection, for clients such as grpcurl.
	Reflection bool
}

// ServerDeps are the dependencies of a [Server]. All fields except Trace are required.
type ServerDeps struct {
	// Tokens identifies people.
	Tokens *authn.Tokens
	// Log receives errors whose messages are not sent to callers.
	Log *slog.Logger
	// Trace creates spans. If it is nil, no spans are created.
	Trace stats.Handler
}

// A Server serves the mesh roles of one process, such as gateway and policy, over the network and over pipes.
type Server struct {
	cfg    ServerConfig
	deps   ServerDeps
	chain  *chain
	grpc   *grpc.Server
	health *health.Server
	// checks maps the name of each served mesh role to its HealthChecker. The value is nil if the service has no
	// HealthChecker.
	checks map[string]HealthChecker
	pipes  []net.Listener
	local  map[string]localMethod
	// carried contains the methods whose calls may be carried, by full name.
	carried map[string]carried
	stop    func()
	err     error
}

// newValidator returns the validator of all servers in this process, because each constraint takes long to compile.
var newValidator = sync.OnceValues(func() (protovalidate.Validator, error) {
	return protovalidate.New(protovalidate.WithMessages(new(identityv1.Principal)))
})

// NewServer returns a server. The server has no services until [Server.Add] is called.
func NewServer(cfg ServerConfig, deps ServerDeps) (*Server, error) {
	if deps.Tokens == nil || deps.Log == nil {
		return nil, errors.New("rpc: tokens and a log are required")
	}
	validator, err := newValidator()
	if err != nil {
		return nil, fmt.Errorf("compile the contracts' constraints: %w", err)
	}
	verifier, err := authn.NewVerifier(func(m proto.Message) error { return validator.Validate(m) })
	if err != nil {
		return nil, err
	}
	// The second argument is the maximum number of unary calls of one person that are processed at a time. While that
	// many calls are being processed, the server does not read the messages of further calls of the same person.
	turns, err := fairqueue.New[quotaKey](math.MaxInt, max(2, fairqueue.Processors()/2))
	if err != nil {
		return nil, err
	}
	buffers, err := newBuffers()
	if err != nil {
		return nil, err
	}
	stopping := make(chan struct{})
	s := &Server{
		cfg:  cfg,
		deps: deps,
		chain: &chain{
			gate: &authorizer{
				tokens:   deps.Tokens,
				verifier: verifier,
				methods:  make(map[string]methodRules),
				audience: make(map[string]authv1.Role),
			},
			validate: validator,
			log:      deps.Log,
			stopping: stopping,
			people:   newCallQuotas(personCalls, personBytes, peopleBytes, turns),
			roles:    newCallQuotas(math.MaxInt, roleBytes, roleBytes, nil),
			buffers:  buffers,
		},
		health:  health.NewServer(),
		checks:  make(map[string]HealthChecker),
		local:   make(map[string]localMethod),
		carried: make(map[string]carried),
		stop:    sync.OnceFunc(func() { close(stopping) }),
	}
	s.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING) // until all services were checked
	s.createServer()
	return s, s.err
}

// createServer creates the gRPC server and registers the services that every process has.
func (s *Server) createServer() {
	opts := []grpc.ServerOption{
		grpc.Creds(networkCreds(s.cfg.TLS)),
		grpc.InTapHandle(s.chain.tap),
		grpc.StreamInterceptor(s.chain.stream),
		grpc.MaxRecvMsgSize(0), // the interceptors read requests themselves
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(16 * window),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: idleTimeout}),
	}
	if s.deps.Trace != nil {
		opts = append(opts, grpc.StatsHandler(s.deps.Trace))
	}
	s.grpc = grpc.NewServer(opts...)
	healthv1.RegisterHealthServer(s.registrar(authv1.Role_ROLE_UNSPECIFIED), s.health)
	meshv1.RegisterCarrierServiceServer(s.registrar(authv1.Role_ROLE_UNSPECIFIED), carrier{server: s})
	if s.cfg.Reflection {
		reflection.Register(s)
	}
}

// Add registers the service with the given mesh role. It must not be called after Serve.
func (s *Server) Add(role authv1.Role, svc Service) error {
	if _, err := authn.ParseRole(authn.RoleName(role)); err != nil {
		return fmt.Errorf("rpc: add a service: %w", err)
	}
	if svc == nil {
		return fmt.Errorf("rpc: the service of role %s is nil", authn.RoleName(role))
	}
	svc.Register(s.registrar(role))
	check, _ := svc.(HealthChecker)
	s.checks[authn.RoleName(role)] = check
	s.health.SetServingStatus(authn.RoleName(role), healthv1.HealthCheckResponse_NOT_SERVING)
	return s.err
}

// GetServiceInfo implements [reflection.GRPCServer].
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// RegisterService implements [reflection.GRPCServer].
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.registrar(authv1.Role_ROLE_UNSPECIFIED).RegisterService(desc, impl)
}

func (s *Server) registrar(role authv1.Role) grpc.ServiceRegistrar { return registrar{s, role} }

// registrar registers the gRPC services of a mesh role. It also registers their methods for calls inside the process,
// and the rules for all methods.
type registrar struct {
	server *Server
	role   authv1.Role
}

// RegisterService implements [grpc.ServiceRegistrar].
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s := r.server
	table, err := methodTerms(desc.ServiceName)
	s.err = errors.Join(s.err, err, s.chain.compile(desc.ServiceName))
	maps.Copy(s.chain.gate.methods, table)
	s.chain.gate.audience[desc.ServiceName] = r.role
	network := *desc
	network.Methods, network.Streams = nil, slices.Clone(desc.Streams)
	for _, md := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + md.MethodName
		s.local[name] = s.chain.inside(name, impl, md.Handler)
		if table[name].carried {
			s.err = errors.Join(s.err, s.carry(name))
		}
		network.Streams = append(network.Streams, grpc.StreamDesc{StreamName: md.MethodName, Handler: asStream(s.chain.unary(name, md.Handler))})
	}
	s.grpc.RegisterService(&network, impl)
}

// carry registers a method whose calls may be carried.
func (s *Server) carry(name string) error {
	contract, err := serviceDescriptor(serviceOf(name))
	if err != nil {
		return err
	}
	_, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	request, err := protoregistry.GlobalTypes.FindMessageByName(contract.Methods().ByName(protoreflect.Name(method)).Input().FullName())
	if err != nil {
		return fmt.Errorf("carry calls of %s: %w", name, err)
	}
	s.carried[name] = carried{serve: s.local[name], request: request, most: s.chain.gate.termsOf(name).request}
	return nil
}

// Serve serves the pipes of this process and the listeners until ctx is done. It then stops in three steps. First, it
// reports that it is not serving, so that load balancers send no more calls. Then it ends all streams, because they
// would never end otherwise. Finally, it waits for calls in flight. A listener without TLS must be on loopback.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	for _, lis := range listeners {
		if s.cfg.TLS == nil && !isLoopback(lis.Addr()) {
			return fmt.Errorf("serve %s: gRPC without TLS is served on loopback only: set tls.dir, or set grpc to an address on 127.0.0.1", lis.Addr())
		}
	}
	all := slices.Clone(s.pipes)
	for _, lis := range listeners {
		bounded, err := connlimit.Listen(lis, listenerLimits(), s.deps.Log)
		if err != nil {
			return err
		}
		all = append(all, bounded)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, lis := range all {
		group.Go(func() error {
			if err := s.grpc.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) { // the server may already have been stopped
				return err
			}
			return nil
		})
	}
	group.Go(func() error { return s.watchHealth(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		s.health.Shutdown()
		s.stop()
		cut := time.AfterFunc(drainTimeout, s.grpc.Stop)
		defer cut.Stop()
		s.grpc.GracefulStop()
		return nil
	})
	return group.Wait()
}

func (s *Server) watchHealth(ctx context.Context) error {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		s.CheckHealth(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// CheckHealth checks every service, updates the health service, and returns the errors by mesh role. The process as a
// whole, whose name is empty, is reported as serving if all services are serving.
func (s *Server) CheckHealth(ctx context.Context) map[string]error {
	sick := make(map[string]error)
	for role, check := range s.checks {
		status := healthv1.HealthCheckResponse_SERVING
		if check != nil {
			if err := check.Health(ctx); err != nil {
				sick[role] = err
				status = healthv1.HealthCheckResponse_NOT_SERVING
			}
		}
		s.health.SetServingStatus(role, status)
	}
	all := healthv1.HealthCheckResponse_SERVING
	if len(sick) > 0 {
		all = healthv1.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus("", all)
	return sick
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
