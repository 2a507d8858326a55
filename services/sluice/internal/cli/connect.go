package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
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

// These are the names of the files with generated tokens in DATA/tokens. They are also the roles of the tokens.
const (
	agentToken    = "agent"
	operatorToken = "operator"
)

func tokenFile(f *config.File, name string) string {
	return filepath.Join(f.Path(f.Data), "tokens", name)
}

// readToken returns SLUICE_TOKEN if it is set, and otherwise the generated token with this name.
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

// credential is the secret of a token. from is the name of the variable or file that contains the secret. The secret
// may be empty.
type credential struct{ secret, from string }

// personCredential returns the token for a person's commands. It uses SLUICE_TOKEN if it is set, otherwise the session
// from `login` at this mesh, and otherwise the generated operator token.
func (t *tool) personCredential(f *config.File, at endpoint) (credential, error) {
	if text, ok := app.Env("SLUICE_TOKEN"); ok && text != "" {
		return credential{secret: text, from: "SLUICE_TOKEN"}, nil
	}
	ctx, cancel := requestContext(context.Background())
	defer cancel()
	session, err := readSession(ctx, f)
	switch {
	case errors.Is(err, errNoSession), err == nil && session.Mesh != at.mesh:
		secret, err := t.readToken(f, operatorToken)
		return credential{secret: secret, from: tokenFile(f, operatorToken)}, err
	case err != nil:
		return credential{}, fmt.Errorf("%w; sign in again with %s, or remove the session with %s", err, t.command("login"), t.command("logout"))
	case !session.isValid(time.Now()):
		return credential{}, fmt.Errorf("your session as %s ended at %s: sign in again with %s, or remove the session with %s", session.Subject, session.Expires.Local().Format(time.DateTime), t.command("login"), t.command("logout"))
	}
	return credential{secret: session.secret, from: sessionSource}, nil
}

// endpoint is the gRPC address of a mesh service.
type endpoint struct {
	// address is HOST:PORT. from says whether the address comes from a flag, a variable or the configuration.
	address, from string
	// tls is nil if the service does not use TLS.
	tls *tls.Config
	// mesh identifies the mesh by its certificate authority, or by its address if it does not use TLS. A session is sent
	// only to the mesh where the person has signed in.
	mesh string
}

// hasToken reports whether the configuration has tokens with the given role. If it does, `up` generates no token with
// this role.
func hasToken(f *config.File, role string) bool {
	return slices.ContainsFunc(f.Auth.Tokens, func(t config.Token) bool { return t.Role == role })
}

// dial connects to a mesh service with the token from [tool.personCredential].
func (t *tool) dial(f *config.File, role authv1.Role) (*grpc.ClientConn, error) {
	at, err := t.endpointOf(f, role)
	if err != nil {
		return nil, err
	}
	with, err := t.personCredential(f, at)
	if err != nil {
		return nil, err
	}
	return t.dialWith(at, with)
}

// dialWith connects to a mesh service with a given token.
func (t *tool) dialWith(at endpoint, with credential) (*grpc.ClientConn, error) {
	t.lastRequest = requestTarget{address: at.address, addressFrom: at.from, tokenFrom: with.from}
	if at.tls == nil && !loopback.Address(at.address) {
		return nil, fmt.Errorf("the token is not sent to %s, because it is not on this machine and TLS is not configured: set tls.dir to the folder with ca.pem", at.address)
	}
	return rpc.DialPerson(at.address, with.secret, at.tls)
}

// endpointOf returns the address of a mesh service. This is the address in --addr if it is set. Otherwise it is the
// service's own address if the services run in separate processes, or else the gRPC address in the configuration.
func (t *tool) endpointOf(f *config.File, role authv1.Role) (endpoint, error) {
	at, server := endpoint{address: f.GRPC, from: cmp.Or(f.Name(), "the default")}, authv1.Role_ROLE_GATEWAY
	if f.HasSeparateRoles() {
		at.address, server = f.Roles[authn.RoleName(role)].Addr, role
	}
	if t.addr != "" {
		at.address, at.from = t.addr, t.addrFrom
	}
	if isFreePort(at.address) {
		return endpoint{}, t.errNotRunning()
	}
	var err error
	if at.tls, err = clientTLS(f, server); err != nil {
		return endpoint{}, err
	}
	at.mesh = "address:" + at.address
	if at.tls != nil {
		authority, err := os.ReadFile(filepath.Join(f.Path(f.TLS.Dir), pki.CAFile))
		if err != nil {
			return endpoint{}, err
		}
		sum := sha256.Sum256(authority)
		at.mesh = "ca:" + hex.EncodeToString(sum[:])
	}
	return at, nil
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

// mcpPath returns the path of a server's MCP endpoint. An empty name means the endpoint for all servers.
func mcpPath(server string) string { return strings.TrimSuffix("/mcp/"+server, "/") }

// mcpURL returns the URL of a server's MCP endpoint, from the configuration. An empty name means the endpoint for all
// servers.
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

// mcpClient returns an HTTP client for the MCP address. It protects the token in the same way as the client from
// [tokenhttp.New]. It trusts the system's certificate authorities and the certificate in listen_tls of the
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
	case !errors.Is(err, fs.ErrNotExist): // the command may run on a machine that does not have the file
		return nil, fmt.Errorf("read the certificate in listen_tls: %w", err)
	}
	return tokenhttp.New(trusted, t.cleartextTo), nil
}

func requestContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}
