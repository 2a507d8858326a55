package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
	"github.com/sluice-mesh/sluice/services/internal/pki"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

const requestTimeout = 10 * time.Second

// These are the names of the files with the generated tokens in DATA/tokens, and also the roles of the tokens.
const (
	agentToken    = "agent"
	operatorToken = "operator"
)

func tokenFile(f *config.File, name string) string {
	return filepath.Join(f.Path(f.Data), "tokens", name)
}

// readToken returns SLUICE_TOKEN if that variable is set, and otherwise the generated token with this name.
func (t *tool) readToken(f *config.File, name string) (string, error) {
	if text, ok := app.Env("SLUICE_TOKEN"); ok && text != "" {
		return text, nil
	}
	file := tokenFile(f, name)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && hasToken(f, name) {
		return "", t.errTokenConfigured(f, name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no %s token: %s does not exist; start the mesh with %s, or name its data folder with --data, or set SLUICE_TOKEN; %s sets up a mesh for your clients", name, absolutePath(file), t.command("up"), t.command("init"))
	}
	if err != nil {
		return "", fmt.Errorf("read the %s token: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// tokenSource returns the name of the variable or file from which readToken gets the token.
func tokenSource(f *config.File, name string) string {
	if text, ok := app.Env("SLUICE_TOKEN"); ok && text != "" {
		return "SLUICE_TOKEN"
	}
	return tokenFile(f, name)
}

// hasToken reports whether the configuration has tokens with the given role. If so, `up` generates no token with this
// role.
func hasToken(f *config.File, role string) bool {
	return slices.ContainsFunc(f.Auth.Tokens, func(t config.Token) bool { return t.Role == role })
}

// dial connects to a mesh service as the operator. If --addr is set, dial uses that address. Otherwise, if the services
// run in separate processes, it uses the service's address. Otherwise it uses the gRPC address of the configuration.
func (t *tool) dial(f *config.File, role authv1.Role) (*grpc.ClientConn, error) {
	token, err := t.readToken(f, operatorToken)
	if err != nil {
		return nil, err
	}
	target, server, from := f.GRPC, authv1.Role_ROLE_GATEWAY, cmp.Or(f.Name(), "the default")
	if f.HasSeparateRoles() {
		target, server = f.Roles[authn.RoleName(role)].Addr, role
	}
	if t.addr != "" {
		target, from = t.addr, t.addrFrom
	}
	if isFreePort(target) {
		return nil, t.errNotRunning()
	}
	t.lastRequest = requestTarget{address: target, addressFrom: from, tokenFrom: tokenSource(f, operatorToken)}
	cfg, err := clientTLS(f, server)
	if err != nil {
		return nil, err
	}
	if cfg == nil && !loopback.Address(target) {
		return nil, fmt.Errorf("the token is not sent to %s, because it is not on this machine and TLS is not configured: set tls.dir to the folder with ca.pem", target)
	}
	return rpc.DialPerson(target, token, cfg)
}

// clientTLS returns the TLS configuration for a connection to a mesh service, or nil if the configuration has no TLS.
func clientTLS(f *config.File, server authv1.Role) (*tls.Config, error) {
	if f.TLS.Dir == "" {
		return nil, nil //nolint:nilnil // nil means plaintext
	}
	pool, err := pki.LoadCA(f.Path(f.TLS.Dir))
	if err != nil {
		return nil, err
	}
	return rpc.ClientTLS(nil, pool, server), nil
}

// mcpPath returns the path of the MCP endpoint of a server. An empty name means the endpoint for all servers.
func mcpPath(server string) string { return strings.TrimSuffix("/mcp/"+server, "/") }

// mcpURL returns the URL of the MCP endpoint of a server, according to the configuration. An empty name means the
// endpoint for all servers.
func mcpURL(f *config.File, server string) string {
	host, port, err := net.SplitHostPort(f.Listen)
	if err != nil {
		return ""
	}
	if f.HasSeparateRoles() {
		if h, _, err := net.SplitHostPort(f.Roles["gateway"].Addr); err == nil {
			host = h
		}
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return f.MCPScheme() + "://" + net.JoinHostPort(host, port) + mcpPath(server)
}

// mcpClient returns an HTTP client for the MCP address. The client protects the token in the same way as the client
// that [tokenhttp.New] returns. It trusts the system's certificate authorities and the certificate in listen_tls of the
// configuration.
func (t *tool) mcpClient(f *config.File) (*http.Client, error) {
	if f.ListenTLS.Cert == "" {
		return tokenhttp.New(nil, t.cleartextTo), nil
	}
	trusted, err := x509.SystemCertPool()
	if err != nil {
		trusted = x509.NewCertPool()
	}
	raw, err := os.ReadFile(f.Path(f.ListenTLS.Cert))
	switch {
	case err == nil:
		trusted.AppendCertsFromPEM(raw)
	case !errors.Is(err, fs.ErrNotExist): // the command may run on another machine
		return nil, fmt.Errorf("read the certificate in listen_tls: %w", err)
	}
	return tokenhttp.New(trusted, t.cleartextTo), nil
}

func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}
