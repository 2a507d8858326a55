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

// askTimeout bounds a request to a running mesh.
const askTimeout = 10 * time.Second

// Names of the generated tokens in DATA/tokens.
const (
	agentToken    = "agent"
	operatorToken = "operator"
)

func tokenFile(f *config.File, name string) string {
	return filepath.Join(f.Path(f.Data), "tokens", name)
}

// secret returns the token to use: SLUICE_TOKEN, otherwise the file of that name.
func (t *tool) secret(f *config.File, name string) (string, error) {
	if text, ok := app.Env("SLUICE_TOKEN"); ok && text != "" {
		return text, nil
	}
	file := tokenFile(f, name)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && hasToken(f, name) {
		return "", fmt.Errorf("no %s token: the configuration has its own under auth.tokens: set SLUICE_TOKEN to the text of one", name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no %s token: %s does not exist; start the mesh with %s, or name its folder with --data, or set SLUICE_TOKEN", name, absolute(file), t.command("up"))
	}
	if err != nil {
		return "", fmt.Errorf("read the %s token: %w", name, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

// secretFrom returns where secret gets the token from.
func secretFrom(f *config.File, name string) string {
	if text, ok := app.Env("SLUICE_TOKEN"); ok && text != "" {
		return "SLUICE_TOKEN"
	}
	return tokenFile(f, name)
}

// hasToken reports whether the configuration has tokens of a role. If it has, none is generated.
func hasToken(f *config.File, role string) bool {
	return slices.ContainsFunc(f.Auth.Tokens, func(t config.Token) bool { return t.Role == role })
}

// dial connects to a role as the operator: to the role's address if roles are separate, otherwise to the address of
// all.
func (t *tool) dial(f *config.File, role authv1.Role) (*grpc.ClientConn, error) {
	token, err := t.secret(f, operatorToken)
	if err != nil {
		return nil, err
	}
	target, server, from := f.GRPC, authv1.Role_ROLE_GATEWAY, cmp.Or(f.Name(), "the default")
	if f.Apart() {
		target, server = f.Roles[authn.RoleName(role)].Addr, role
	}
	if t.addr != "" {
		target, from = t.addr, t.addrFrom
	}
	t.asked = asked{target: target, from: from, token: secretFrom(f, operatorToken)}
	cfg, err := clientTLS(f, server)
	if err != nil {
		return nil, err
	}
	if cfg == nil && !loopback.Address(target) {
		return nil, fmt.Errorf("%s is not on this machine, and a token is sent in the clear to loopback alone: set tls.dir to the folder with ca.pem", target)
	}
	return rpc.DialPerson(target, token, cfg)
}

// clientTLS returns the TLS configuration for a connection to a server; nil if the mesh serves plaintext on loopback.
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

// mcpPath returns the path of a server's MCP endpoint, or of the one for all servers if the name is empty.
func mcpPath(server string) string { return strings.TrimSuffix("/mcp/"+server, "/") }

// mcpURL returns the URL of a server's MCP endpoint, or of the one for all servers if the name is empty.
func mcpURL(f *config.File, server string) string {
	host, port, err := net.SplitHostPort(f.Listen)
	if err != nil {
		return ""
	}
	if f.Apart() {
		if h, _, err := net.SplitHostPort(f.Roles["gateway"].Addr); err == nil {
			host = h
		}
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	return f.MCPScheme() + "://" + net.JoinHostPort(host, port) + mcpPath(server)
}

// edgeClient returns a client for the MCP address. It trusts the system's authorities and the certificate that the
// configuration names for that address, and refuses what [tokenhttp.New] refuses.
func (t *tool) edgeClient(f *config.File) (*http.Client, error) {
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
		return nil, fmt.Errorf("read the certificate of MCP: %w", err)
	}
	return tokenhttp.New(trusted, t.cleartextTo), nil
}

// ask bounds a request in time.
func ask(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, askTimeout)
}
