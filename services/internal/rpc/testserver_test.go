package rpc_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	gateway   = authv1.Role_ROLE_GATEWAY
	policy    = authv1.Role_ROLE_POLICY
	ratelimit = authv1.Role_ROLE_RATELIMIT
	wasmagent = authv1.Role_ROLE_WASMAGENT
	operator  = authv1.TokenRole_TOKEN_ROLE_OPERATOR
	agent     = authv1.TokenRole_TOKEN_ROLE_AGENT
)

const testTimeout = 10 * time.Second

// tokenText returns the secret of the token with the given token role. There is one token for each role.
func tokenText(role authv1.TokenRole) string { return "text-of-the-token-of-" + role.String() }

func newTokens(t testing.TB) *authn.Tokens {
	t.Helper()
	var records []*identityv1.TokenRecord
	for number := range authv1.TokenRole_name {
		role := authv1.TokenRole(number)
		hash := authn.HashSecret(tokenText(role))
		records = append(records, &identityv1.TokenRecord{Sha256: hash[:], Token: &identityv1.Token{
			Name: role.String(), Tenant: "default", Subject: role.String(), Role: role,
		}})
	}
	tokens, err := authn.NewTokens(records)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// A serviceFunc is a function that registers a service.
type serviceFunc func(grpc.ServiceRegistrar)

// Register implements [rpc.Service].
func (f serviceFunc) Register(r grpc.ServiceRegistrar) { f(r) }

// testServer is a server with the mesh role policy and the given services. It is available over pipes, over TLS, and
// over loopback without TLS.
type testServer struct {
	authority *pki.Authority
	tokens    *authn.Tokens
	log       syncBuffer
	// serverTrace and clientTrace create spans. If they are nil, no spans are created.
	serverTrace, clientTrace stats.Handler
	pipes                    map[pipeKey]grpc.ClientConnInterface
	tls                      string
	plain                    string
	// stop stops the server that listens at the address in the field tls.
	stop func() error
}

type pipeKey struct {
	role   authv1.Role
	speaks bool
}

// A testPath is one way in which other services connect to the test server. If the parameter speaks of the function as
// is true, the connection signs principals.
type testPath struct {
	name string
	as   func(t *testing.T, role authv1.Role, speaks bool) grpc.ClientConnInterface
}

// paths returns all ways in which other services connect to the test server. Each test must pass with all of them.
func (s *testServer) paths() []testPath {
	return []testPath{
		{"in one process", func(_ *testing.T, role authv1.Role, speaks bool) grpc.ClientConnInterface {
			return s.pipes[pipeKey{role, speaks}]
		}},
		{"over TLS", func(t *testing.T, role authv1.Role, speaks bool) grpc.ClientConnInterface {
			return s.over(t, role, speaks).ClientConn
		}},
		{"carried over TLS", func(t *testing.T, role authv1.Role, speaks bool) grpc.ClientConnInterface {
			return s.over(t, role, speaks)
		}},
	}
}

// over returns a connection to the test server over TLS, from the service with the given mesh role.
func (s *testServer) over(t *testing.T, role authv1.Role, speaks bool) rpc.Carried {
	t.Helper()
	id := s.identity(t, pki.RoleLeaf(role))
	deps := rpc.ClientDeps{Trace: s.clientTrace}
	if speaks {
		deps.Signer = signer(t, role, id)
	}
	return rpc.Carried{Conn: s.dial(t, rpc.ClientTLS(&id.Cert, s.authority.Pool(), policy), deps)}
}

// newTestServer starts a test server, which stops when the test ends.
func newTestServer(t *testing.T, svc rpc.Service) *testServer {
	t.Helper()
	return (&testServer{tokens: newTokens(t)}).start(t, svc)
}

// start starts a test server. The test may have set some of the server's fields before.
func (s *testServer) start(t *testing.T, svc rpc.Service) *testServer {
	t.Helper()
	s.pipes = make(map[pipeKey]grpc.ClientConnInterface)
	var err error
	if s.authority, err = pki.NewAuthority(); err != nil {
		t.Fatal(err)
	}
	secure := s.server(t, rpc.ServerConfig{TLS: s.secure(t)}, svc)
	open := s.server(t, rpc.ServerConfig{Reflection: true}, svc)
	for number := range authv1.Role_name {
		if role := authv1.Role(number); role != authv1.Role_ROLE_UNSPECIFIED {
			s.openPipes(t, open, role)
		}
	}
	s.tls, s.stop = serve(t, secure)
	s.plain, _ = serve(t, open)
	return s
}

// secure returns the TLS configuration of a server with the mesh role policy.
func (s *testServer) secure(t *testing.T) *tls.Config {
	t.Helper()
	id := s.identity(t, pki.RoleLeaf(policy))
	return rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) { return &id.Cert, s.authority.Pool() })
}

func (s *testServer) server(t *testing.T, cfg rpc.ServerConfig, svc rpc.Service) *rpc.Server {
	t.Helper()
	server, err := rpc.NewServer(cfg, rpc.ServerDeps{Tokens: s.tokens, Log: slog.New(slog.NewTextHandler(&s.log, nil)), Trace: s.serverTrace})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Add(policy, svc); err != nil {
		t.Fatal(err)
	}
	return server
}

func (s *testServer) openPipes(t *testing.T, server *rpc.Server, role authv1.Role) {
	t.Helper()
	id, err := pki.Ephemeral(role)
	if err != nil {
		t.Fatal(err)
	}
	for _, speaks := range []bool{false, true} {
		deps := rpc.ClientDeps{Trace: s.clientTrace}
		if speaks {
			deps.Signer = signer(t, role, id)
		}
		if s.pipes[pipeKey{role, speaks}], err = server.Conn(id.Peer, deps); err != nil {
			t.Fatal(err)
		}
	}
}

// signer returns the signer of the service with the given mesh role, or nil if the service does not sign principals.
func signer(t *testing.T, role authv1.Role, id *pki.Identity) *authn.Signer {
	t.Helper()
	if !authn.Signs(role) {
		return nil
	}
	s, err := authn.NewSigner(role, id.Key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve serves on a loopback address until the returned function stop is called or the test ends. This function returns
// the result of Serve.
func serve(t *testing.T, server *rpc.Server) (addr string, stop func() error) {
	t.Helper()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, lis) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return lis.Addr().String(), stop
}

// identity returns an identity whose certificate is issued by the test server's CA.
func (s *testServer) identity(t *testing.T, leaf pki.Leaf) *pki.Identity {
	t.Helper()
	certPEM, keyPEM, err := s.authority.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	id, err := pki.NewIdentity(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (s *testServer) dial(t *testing.T, cfg *tls.Config, deps rpc.ClientDeps) *rpc.Conn {
	t.Helper()
	conn, err := rpc.Dial("passthrough:///"+s.tls, policy, cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// person returns a connection that uses the given token. An empty token is not sent.
func (s *testServer) person(t *testing.T, token string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialPerson(s.plain, token, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func timeoutContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// syncBuffer is a log that a test can read while the server writes to it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
