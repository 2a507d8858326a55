package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// probeTimeout limits how long a probe waits for a response.
	probeTimeout = 3 * time.Second
	// maxReason limits how many bytes of an error response a probe reads.
	maxReason = 1 << 10
)

// network connects a service that runs in a separate process to the other services. It contains the service's current
// certificate, the certificates of the CA, and the connections.
type network struct {
	role authv1.Role
	file *config.File
	keys *pki.Source[pki.Keys]
	log  *slog.Logger
	deps rpc.ClientDeps

	mu    sync.Mutex
	conns map[authv1.Role]*roleConn
}

func openNetwork(role authv1.Role, file *config.File, log *slog.Logger) (*network, error) {
	if file.TLS.Dir == "" {
		return nil, errors.New("tls.dir is not set: roles in separate processes need certificates; make them with `sluice certs`")
	}
	keys, err := pki.WatchRole(file.Path(file.TLS.Dir), role, log)
	if err != nil {
		return nil, err
	}
	n := &network{role: role, file: file, keys: keys, log: log, conns: make(map[authv1.Role]*roleConn)}
	keys.OnChange(func(*pki.Keys) { n.renew() })
	return n, nil
}

// renew replaces every connection with one that uses the current certificate.
func (n *network) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.conns {
		l.renew()
	}
}

func (n *network) present() (*tls.Certificate, *x509.CertPool) {
	keys := n.keys.Current()
	return &keys.Cert, keys.Pool
}

// dial returns the connection to a service of the mesh. All callers share one connection to each service.
func (n *network) dial(to authv1.Role) (grpc.ClientConnInterface, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l, ok := n.conns[to]; ok {
		return l, nil
	}
	l := &roleConn{target: "dns:///" + n.file.Roles[authn.RoleName(to)].Addr, to: to, from: n.role, keys: n.keys, deps: n.deps, log: n.log}
	if err := l.open(); err != nil {
		return nil, err
	}
	n.conns[to] = l
	return l, nil
}

func (n *network) close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, l := range n.conns {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// probeTarget returns the address at which a program on this machine reaches a service that listens at addr. If the
// service listens on all addresses, the host is localhost.
func probeTarget(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("read the address to probe: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port), nil
}

// probe returns an error if the service on this machine is not serving. For the gateway, it also returns an error if
// MCP is not ready.
func (n *network) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := n.probeRPC(ctx); err != nil || n.role != authv1.Role_ROLE_GATEWAY {
		return err
	}
	return n.probeMCP(ctx)
}

func (n *network) probeRPC(ctx context.Context) error {
	target, err := probeTarget(n.file.Roles[authn.RoleName(n.role)].Listen)
	if err != nil {
		return err
	}
	cert, pool := n.present()
	conn, err := rpc.Dial("passthrough:///"+target, n.role, rpc.ClientTLS(cert, pool, n.role), rpc.ClientDeps{})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only the response matters
	resp, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("probe: the service is %s", resp.GetStatus())
	}
	return nil
}

func (n *network) probeMCP(ctx context.Context) error {
	target, err := probeTarget(n.file.Listen)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.file.MCPScheme()+"://"+target+"/readyz", http.NoBody)
	if err != nil {
		return fmt.Errorf("probe MCP: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate names the public host, not this machine; nothing secret is sent
	}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("probe MCP: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the response matters
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason)) // the beginning of the response is enough
		return fmt.Errorf("probe MCP: %s: %s", resp.Status, strings.TrimSpace(string(why)))
	}
	return nil
}
