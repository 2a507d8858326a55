package app

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// Mesh contains what a service needs from the process and from the other services of the mesh.
type Mesh struct {
	Process
	// Tokens identifies callers by their tokens. The identity service itself fills this set. The other services receive it
	// from the identity service.
	Tokens *authn.Tokens
	// Conn returns a connection to the service with the given role.
	Conn func(authv1.Role) (grpc.ClientConnInterface, error)
	// Signer signs decisions with the key of the service's certificate. The other services accept only the policy
	// service's signatures.
	Signer *signeddecision.Signer
	// Verifier verifies the policy service's signatures.
	Verifier *signeddecision.Verifier
	// Embedded contains the names of the configured MCP servers that this process itself serves.
	Embedded []string
	// Launcher starts this program again as a launcher of stdio MCP servers.
	Launcher sandbox.Launcher
	// Wrap wraps the listener for clients, so that the clients' connections are observed. It is nil if the connections are
	// not observed.
	Wrap func(net.Listener) net.Listener
}

// A Runner is a service that does work in addition to serving RPCs.
type Runner interface {
	// Run blocks until ctx is done. If it returns earlier, it returns an error.
	Run(ctx context.Context) error
}

// A Busier is a service that may have work for which the process must keep running even if no client is connected.
type Busier interface {
	// Busy describes the work, or returns "" if there is none.
	Busy(ctx context.Context) (string, error)
}

// A Closer is a service that acquires resources when it is constructed.
type Closer interface {
	// Close releases the resources. It is called once, after Run has returned.
	Close() error
}

// Build creates a service of the mesh, either for a separate process or for one process that runs all services. The
// package of each service has a Build function.
type Build func(ctx context.Context, mesh Mesh) (rpc.Service, error)

// Role is the main function of the program that runs the service with the given role. It does not return.
func Role(role authv1.Role, build Build) {
	name := authn.RoleName(role)
	Tune()
	os.Exit(run(name, os.Args[1:], func(ctx context.Context, opts options) error {
		file, err := config.Load(opts.config, Env)
		if err != nil {
			return err
		}
		if opts.level != "" {
			file.Log.Level = opts.level
		}
		net, err := openNetwork(role, file, NewLog(os.Stderr, name, false, file.LogLevel()))
		if err != nil {
			return err
		}
		if opts.probe {
			return net.probe(ctx)
		}
		return serveRole(ctx, net, build)
	}))
}

func serveRole(ctx context.Context, net *network, build Build) (err error) {
	name := authn.RoleName(net.role)
	log := net.log
	tel, err := telemetry.Start(ctx, telemetry.Config{
		Service: "sluice-" + name, Version: Version(),
		Endpoint: net.file.Telemetry.OTLP, Sample: net.file.Telemetry.Sample, Log: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tel.Close()) }()
	defer func() { err = errors.Join(err, net.close()) }()
	net.deps.Trace = rpc.ClientTrace(tel.Provider, tel.Propagator)
	mesh := Mesh{
		Process: Process{File: net.file, Env: Env, Reload: net.file.Reloader(nil, Env), Log: log, Telemetry: tel, Version: Version()},
		Tokens:  new(authn.Tokens),
		Conn:    net.dial,
		Signer: signeddecision.NewSigner(func() (ed25519.PrivateKey, [][]byte) {
			keys := net.keys.Current()
			return keys.Key, keys.Cert.Certificate
		}),
		Verifier: signeddecision.NewVerifier(func() *x509.CertPool { return net.keys.Current().Pool }),
	}
	svc, err := build(ctx, mesh)
	if err != nil {
		return err
	}
	if c, ok := svc.(Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	return serve(ctx, net, mesh, svc)
}

// serve serves a service's RPCs, calls its Run method, and keeps the tokens up to date. It returns when ctx is done or
// when any of these tasks fails.
func serve(ctx context.Context, at *network, mesh Mesh, svc rpc.Service) error {
	server, err := rpc.NewServer(
		rpc.ServerConfig{TLS: rpc.ServerTLS(at.present), Reflection: true},
		rpc.ServerDeps{Tokens: mesh.Tokens, Log: mesh.Log, Trace: rpc.ServerTrace(mesh.Telemetry.Provider, mesh.Telemetry.Propagator)},
	)
	if err != nil {
		return err
	}
	if err := server.Add(at.role, svc); err != nil {
		return err
	}
	name := authn.RoleName(at.role)
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", mesh.File.Roles[name].Listen)
	if err != nil {
		return fmt.Errorf("listen on roles.%s.listen: %w", name, err)
	}
	mesh.Log.InfoContext(ctx, "serving gRPC", "address", lis.Addr().String(), "version", Version())
	identity, err := mesh.Conn(authv1.Role_ROLE_IDENTITY)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(ctx, lis) })
	group.Go(func() error { return at.keys.Run(ctx) })
	if runner, ok := svc.(Runner); ok {
		group.Go(func() error { return runner.Run(ctx) })
	}
	if at.role != authv1.Role_ROLE_IDENTITY { // the identity role is the source of the tokens
		group.Go(func() error {
			reconnect := func() {}
			if c, ok := identity.(*roleConn); ok {
				reconnect = c.renew
			}
			return authn.WatchTokens(ctx, identityv1.NewIdentityServiceClient(identity), mesh.Tokens, mesh.Log, reconnect)
		})
	}
	return group.Wait()
}
