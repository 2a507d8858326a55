// Package sluice runs all services of the mesh in one process. The services use the same handlers, interceptors and
// status codes as in separate processes. They are connected by pipes instead of a network.
package sluice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
	"github.com/sluice-mesh/sluice/services/internal/signeddecision"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/ratelimit"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

const readyPoll = 10 * time.Millisecond

// Options configures a mesh.
type Options struct {
	File *config.File
	// Embedded lists the configured servers that this process itself serves. The identity of such a server does not depend
	// on its address, because the address may change at a restart.
	Embedded []string
	// Env returns the values of environment variables, which are used to resolve secrets.
	Env config.Env
	// Reload reads the configuration again. See [app.Process].
	Reload  func() (*config.File, error)
	Log     *slog.Logger
	Version string
	// Launcher starts this program as the launcher of stdio servers. See [gateway.Deps].
	Launcher sandbox.Launcher
	// Connections counts the connections to the mesh. It may be nil.
	Connections *Connections
}

// Mesh is a mesh with all services in one process.
type Mesh struct {
	log    *slog.Logger
	tel    *telemetry.Telemetry
	server *rpc.Server
	tokens *authn.Tokens
	// services contains all mesh services, including the gateway. Each service comes after the services that it depends
	// on.
	services []rpc.Service
	gateway  *gateway.Service
	grpc     net.Listener
	// keys contains the TLS certificate and the trusted certificates of the gRPC listener. It is nil if the
	// configuration has no TLS.
	keys *pki.Source[pki.Keys]
}

// New creates all services of the mesh. It opens the data directories and the listeners. Call [Mesh.Run] to serve
// requests. The caller must close the Mesh.
func New(ctx context.Context, opts Options) (*Mesh, error) {
	if opts.File == nil || opts.Env == nil || opts.Log == nil {
		return nil, errors.New("sluice: configuration, environment and log are required")
	}
	m := &Mesh{log: opts.Log, tokens: new(authn.Tokens)}
	if err := m.build(ctx, opts); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Mesh) build(ctx context.Context, opts Options) (err error) {
	m.tel, err = telemetry.Start(ctx, telemetry.Config{
		Service: "sluice", Version: opts.Version, Endpoint: opts.File.Telemetry.OTLP, Sample: opts.File.Telemetry.Sample,
		Log: opts.Log,
	})
	if err != nil {
		return err
	}
	network, err := m.listenerTLS(opts.File)
	if err != nil {
		return err
	}
	m.server, err = rpc.NewServer(
		rpc.ServerConfig{TLS: network, Reflection: true},
		rpc.ServerDeps{Tokens: m.tokens, Log: m.log, Trace: rpc.ServerTrace(m.tel.Provider, m.tel.Propagator)},
	)
	if err != nil {
		return err
	}
	if err := m.addRoles(ctx, opts); err != nil {
		return err
	}
	if m.grpc, err = new(net.ListenConfig).Listen(ctx, "tcp", opts.File.GRPC); err != nil {
		return fmt.Errorf("listen for gRPC (set another address with the key `grpc` or with --grpc): %w", err)
	}
	m.grpc = opts.Connections.Count(m.grpc)
	return nil
}

// listenerTLS returns the TLS configuration of the gRPC listener, or nil if the configuration has no TLS. The
// validation of the configuration ensures that a listener without TLS is on a loopback address.
func (m *Mesh) listenerTLS(f *config.File) (_ *tls.Config, err error) {
	if f.TLS.Dir == "" {
		return nil, nil //nolint:nilnil // nil means plaintext
	}
	if m.keys, err = pki.WatchRole(f.Path(f.TLS.Dir), authv1.Role_ROLE_GATEWAY, m.log); err != nil {
		return nil, err
	}
	return rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) {
		keys := m.keys.Current()
		return &keys.Cert, keys.Pool
	}), nil
}

var roleConstructors = map[authv1.Role]app.Build{
	authv1.Role_ROLE_IDENTITY: identity.Build, authv1.Role_ROLE_GATEWAY: gateway.Build, authv1.Role_ROLE_POLICY: policy.Build, authv1.Role_ROLE_RATELIMIT: ratelimit.Build,
	authv1.Role_ROLE_APPROVAL: approval.Build, authv1.Role_ROLE_WASMAGENT: wasmagent.Build,
}

// serialized returns a function that calls reload, but never concurrently, because all services share it. It returns nil
// if reload is nil.
func serialized(reload func() (*config.File, error)) func() (*config.File, error) {
	if reload == nil {
		return nil
	}
	var mu sync.Mutex
	return func() (*config.File, error) {
		mu.Lock()
		defer mu.Unlock()
		return reload()
	}
}

func (m *Mesh) addRoles(ctx context.Context, opts Options) error {
	signer, verifier, err := signeddecision.NewLocalPair()
	if err != nil {
		return err
	}
	reload := serialized(opts.Reload)
	for _, role := range authn.Roles() {
		svc, err := roleConstructors[role](ctx, app.Mesh{
			Process: app.Process{
				File: opts.File, Env: opts.Env, Reload: reload, Log: m.log.With("role", authn.RoleName(role)), Telemetry: m.tel, Version: opts.Version,
			},
			Tokens: m.tokens, Conn: m.conns(role), Signer: signer, Verifier: verifier, Embedded: opts.Embedded, Launcher: opts.Launcher, Wrap: opts.Connections.Count,
		})
		if err != nil {
			return err
		}
		if err := m.add(role, svc); err != nil {
			return err
		}
		m.gateway, _ = svc.(*gateway.Service)
	}
	return nil
}

// add adds the service of a mesh role, such as policy. The mesh serves, runs and closes the service.
func (m *Mesh) add(role authv1.Role, svc rpc.Service) error {
	m.services = append(m.services, svc)
	return m.server.Add(role, svc)
}

// conns returns a function with which a service with the given role connects to other services. The function always
// returns the same connection, because one server runs all services.
func (m *Mesh) conns(role authv1.Role) func(authv1.Role) (grpc.ClientConnInterface, error) {
	one := sync.OnceValues(func() (grpc.ClientConnInterface, error) { return m.conn(role) })
	return func(authv1.Role) (grpc.ClientConnInterface, error) { return one() }
}

func (m *Mesh) conn(role authv1.Role) (grpc.ClientConnInterface, error) {
	id, err := pki.Ephemeral(role)
	if err != nil {
		return nil, err
	}
	deps := rpc.ClientDeps{Trace: rpc.ClientTrace(m.tel.Provider, m.tel.Propagator)}
	if authn.Signs(role) {
		if deps.Signer, err = authn.NewSigner(role, id.Key); err != nil {
			return nil, err
		}
	}
	return m.server.Conn(id.Peer, deps)
}

// MCP returns the address of the MCP listener.
func (m *Mesh) MCP() net.Addr { return m.gateway.Addr() }

// Sandboxes maps the name of each stdio server to the restrictions that the kernel enforces for the server.
func (m *Mesh) Sandboxes() map[string]sandbox.Report { return m.gateway.Sandboxes() }

// ObservedPolicy returns the first 100 parts of the active policy that are in observe mode (mode: observe). The mesh
// records the decisions of these parts, but does not enforce them. It also returns the total number of such parts.
func (m *Mesh) ObservedPolicy() ([]*policyv1.ObservedPolicy, int) {
	for _, svc := range m.services {
		if p, ok := svc.(*policy.Service); ok {
			return p.Observed()
		}
	}
	return nil, 0
}

// WatchPending calls report whenever there are calls that wait for a person and were not reported yet. See
// [approval.Service.WatchPending].
func (m *Mesh) WatchPending(ctx context.Context, report func(approval.Pending)) {
	for _, svc := range m.services {
		if a, ok := svc.(*approval.Service); ok {
			a.WatchPending(ctx, report)
		}
	}
}

// InFlight maps the name of each server to the number of its requests that wait for a response. It omits servers
// without such requests.
func (m *Mesh) InFlight() map[string]int { return m.gateway.InFlight() }

// GRPC returns the address at which all services serve gRPC.
func (m *Mesh) GRPC() net.Addr { return m.grpc.Addr() }

// Run serves requests until ctx is done. Then it stops the gateway, which waits for calls in flight. Afterwards, it
// stops the other services, because calls in flight need them.
func (m *Mesh) Run(ctx context.Context) error {
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, edge := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return m.gateway.Run(edge)
	})
	for _, svc := range m.services {
		if runner, ok := svc.(app.Runner); ok && svc != rpc.Service(m.gateway) {
			group.Go(func() error { return runner.Run(inner) })
		}
	}
	if m.keys != nil {
		group.Go(func() error { return m.keys.Run(inner) })
	}
	group.Go(func() error { return m.server.Serve(inner, m.grpc) })
	return group.Wait()
}

// Busy describes work for which the process must continue to run, such as approvals that wait for a person. It returns
// "" if there is no such work.
func (m *Mesh) Busy(ctx context.Context) (string, error) {
	for _, svc := range m.services {
		if busier, ok := svc.(app.Busier); ok {
			if work, err := busier.Busy(ctx); work != "" || err != nil {
				return work, err
			}
		}
	}
	return "", nil
}

// WaitReady waits until every service is ready. If ctx is done first, it returns an error with the reasons why services
// are not ready.
func (m *Mesh) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		sick := m.server.CheckHealth(ctx)
		why := append(m.gateway.NotReady(), m.gateway.Degraded()...)
		if len(sick) == 0 && len(why) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until every role serves: %w: %v %v", ctx.Err(), sick, why)
		case <-tick.C:
		}
	}
}

// Close closes everything that New opened, in reverse order. Call Close after Run has returned.
func (m *Mesh) Close() error {
	var errs []error
	for _, svc := range slices.Backward(m.services) {
		if closer, ok := svc.(app.Closer); ok {
			errs = append(errs, closer.Close())
		}
	}
	if m.grpc != nil {
		if err := m.grpc.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if m.tel != nil {
		errs = append(errs, m.tel.Close())
	}
	return errors.Join(errs...)
}
