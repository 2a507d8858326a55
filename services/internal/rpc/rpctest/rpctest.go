// Package rpctest runs a server for the tests of a service of the mesh. As in the mesh, other services connect over
// pipes, and people connect over loopback.
package rpctest

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Options configure [Serve]. The zero value is usable.
type Options struct {
	// Tokens identifies people. If it is nil, the tokens that [Records] returns are valid.
	Tokens *authn.Tokens
	// Log receives the server's log. If it is nil, the log is discarded.
	Log *slog.Logger
}

// Server is a server of one service of the mesh. It runs until the test ends.
type Server struct {
	addr  string
	roles map[authv1.Role]grpc.ClientConnInterface
}

// Serve serves svc as the service with the given mesh role. The connections of other services are [Witness]es.
func Serve(t testing.TB, role authv1.Role, svc rpc.Service, opts Options) *Server {
	t.Helper()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Tokens == nil {
		tokens, err := authn.NewTokens(Records())
		if err != nil {
			t.Fatal(err)
		}
		opts.Tokens = tokens
	}
	server, err := rpc.NewServer(rpc.ServerConfig{}, rpc.ServerDeps{Tokens: opts.Tokens, Log: opts.Log})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Add(role, svc); err != nil {
		t.Fatal(err)
	}
	s := &Server{roles: make(map[authv1.Role]grpc.ClientConnInterface)}
	for _, from := range roles() {
		s.roles[from] = pipe(t, server, from)
	}
	s.run(t, server)
	return s
}

// pipe connects the service with the given mesh role to the server. If the service signs principals, the connection has
// a signer.
func pipe(t testing.TB, server *rpc.Server, from authv1.Role) grpc.ClientConnInterface {
	t.Helper()
	id, err := pki.Ephemeral(from)
	if err != nil {
		t.Fatal(err)
	}
	var deps rpc.ClientDeps
	if authn.Signs(from) {
		if deps.Signer, err = authn.NewSigner(from, id.Key); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := server.Conn(id.Peer, deps)
	if err != nil {
		t.Fatal(err)
	}
	return NewWitness(t, conn)
}

func (s *Server) run(t testing.TB, server *rpc.Server) {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = lis.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the server stopped with %v", err)
		}
	})
}

// Role returns the connection of the service with the given mesh role.
func (s *Server) Role(role authv1.Role) grpc.ClientConnInterface { return s.roles[role] }

// Gateway returns the gateway's connection to the server.
func (s *Server) Gateway() grpc.ClientConnInterface { return s.roles[authv1.Role_ROLE_GATEWAY] }

// Person returns a connection that uses the token with the given name (see [Record]), or no token if the name is empty.
// The connection is closed when the test ends.
func (s *Server) Person(t testing.TB, token string) *grpc.ClientConn {
	t.Helper()
	if token == "" {
		return s.WithSecret(t, "")
	}
	return s.WithSecret(t, Secret(token))
}

// WithSecret returns a connection whose calls send a token with the given secret.
func (s *Server) WithSecret(t testing.TB, secret string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialPerson(s.addr, secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// CheckHealth waits until the health service reports to the operator that the service is serving. It checks that a
// caller without a token receives the same report.
func (s *Server) CheckHealth(t *testing.T, role string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	operator, nobody := healthv1.NewHealthClient(s.Person(t, "operator")), healthv1.NewHealthClient(s.Person(t, ""))
	for _, service := range []string{role, ""} {
		req := &healthv1.HealthCheckRequest{Service: service}
		stream, err := operator.Watch(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for serving := false; !serving; {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatalf("wait until %q serves: %v", service, err)
			}
			serving = resp.GetStatus() == healthv1.HealthCheckResponse_SERVING
		}
		if resp, err := nobody.Check(ctx, req); err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("%q is %v, %v", service, resp.GetStatus(), err)
		}
	}
}

// Secret returns the secret of the token that [Record] returns for the same name.
func Secret(token string) string { return "the-text-of-the-token-that-is-named-" + token }

// Record returns the record of a token. The token's subject has the same name as the token.
func Record(name, tenant string, role authv1.TokenRole) *identityv1.TokenRecord {
	hash := authn.HashSecret(Secret(name))
	return &identityv1.TokenRecord{
		Token:  &identityv1.Token{Name: name, Tenant: tenant, Subject: name, Role: role, Configured: true},
		Sha256: hash[:],
	}
}

// Records returns one token for each token role in the tenant "default". The roles are agent, operator, approver and
// viewer.
func Records() []*identityv1.TokenRecord {
	var records []*identityv1.TokenRecord
	for _, role := range tokenRoles() {
		records = append(records, Record(enum.Name(role), "default", role))
	}
	return records
}

// Principal returns a principal on whose behalf the gateway may call.
func Principal(tenant, subject string) *identityv1.Principal {
	return &identityv1.Principal{Tenant: tenant, Subject: subject, Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
}

func roles() []authv1.Role {
	var out []authv1.Role
	for _, n := range slices.Sorted(maps.Keys(authv1.Role_name))[1:] {
		out = append(out, authv1.Role(n))
	}
	return out
}

func tokenRoles() []authv1.TokenRole {
	var out []authv1.TokenRole
	for _, n := range slices.Sorted(maps.Keys(authv1.TokenRole_name))[1:] {
		out = append(out, authv1.TokenRole(n))
	}
	return out
}

// WantStatus fails the test unless err has the given code and reason.
func WantStatus(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || rpc.Reason(err) != reason {
		t.Errorf("got %v, reason %q; want %v, reason %q", err, rpc.Reason(err), code, reason)
	}
}
