package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// Case F26. The certificate of a service of the mesh expires. Calls to the service fail, even on an existing
// connection. When the service has received a new certificate, calls succeed again.
func TestRoleConn_RefusesExpiredServerCertificate(t *testing.T) {
	t.Parallel()
	const policy, gateway = authv1.Role_ROLE_POLICY, authv1.Role_ROLE_GATEWAY
	log := slog.New(slog.DiscardHandler)
	authority, err := pki.NewAuthority()
	dir := t.TempDir()
	if err := errors.Join(err, authority.WriteRole(dir, gateway)); err != nil {
		t.Fatal(err)
	}
	issue := func(life time.Duration) *tls.Certificate {
		leaf := pki.RoleLeaf(policy)
		leaf.Life = life
		certPEM, keyPEM, err := authority.Issue(leaf)
		if err != nil {
			t.Fatal(err)
		}
		id, err := pki.NewIdentity(certPEM, keyPEM)
		if err != nil {
			t.Fatal(err)
		}
		return &id.Cert
	}
	var present atomic.Pointer[tls.Certificate]
	present.Store(issue(3 * time.Second))
	server, err := rpc.NewServer(
		rpc.ServerConfig{TLS: rpc.ServerTLS(func() (*tls.Certificate, *x509.CertPool) { return present.Load(), authority.Pool() })},
		rpc.ServerDeps{Tokens: new(authn.Tokens), Log: log},
	)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	keys, err := pki.WatchRole(dir, gateway, log)
	if err != nil {
		t.Fatal(err)
	}
	l := &roleConn{target: "passthrough:///" + lis.Addr().String(), to: policy, from: gateway, keys: keys, log: log}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ask := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		_, err := healthv1.NewHealthClient(l).Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	if err := ask(20 * time.Second); err != nil {
		t.Fatalf("a certificate that lasts is refused: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ask(500*time.Millisecond) == nil; {
		if time.Now().After(end) {
			t.Fatal("an expired certificate is still accepted")
		}
	}
	present.Store(issue(time.Hour))
	if err := ask(20 * time.Second); err != nil {
		t.Errorf("another certificate is refused: %v", err)
	}
}
