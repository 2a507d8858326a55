package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/internal/app"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
	"github.com/sluice-mesh/sluice/services/sluice/internal/personal"
	"github.com/sluice-mesh/sluice/services/sluice/internal/relay"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

// elsewhereTimeout limits how long a remote mesh can take to respond, including the connection.
const elsewhereTimeout = 30 * time.Second

// A meshElsewhere is a remote mesh that another operator runs, with a token for it.
type meshElsewhere struct {
	url    string
	token  string
	client *http.Client
}

// elsewhereClient returns an HTTP client for a remote mesh. The parameter authority is the mesh's own certificate
// authority as PEM, or nil if the mesh has none.
func elsewhereClient(authority []byte) (*http.Client, error) {
	if authority == nil {
		return tokenhttp.New(nil, ""), nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("it contains no certificate in the PEM format")
	}
	return tokenhttp.New(roots, ""), nil
}

// elsewhereRelay returns the configuration of a relay to a remote mesh with the given client's token. If the token or
// the certificate authority can't be read, the relay responds to each message from the client with the reason.
func (t *tool) elsewhereRelay(base, server, as string) (cfg relay.Config, err error) {
	if err := personal.CheckClient(as); err != nil {
		return cfg, usageError{fmt.Errorf("--as: %w", err)}
	}
	paths, err := personal.Find()
	if err != nil {
		return cfg, err
	}
	at, err := paths.Elsewhere(base)
	if err != nil {
		return cfg, usageError{fmt.Errorf("--url: %w", err)}
	}
	token, authority, err := t.storedElsewhere(at, as)
	if err != nil {
		return t.brokenRelay(err), nil
	}
	cfg.Token, cfg.NewToken = token, t.command("init --http "+at.URL+" "+as+" --token-file FILE")
	if cfg.Client, err = elsewhereClient(authority); err != nil {
		return t.brokenRelay(fmt.Errorf("%s: %w", at.Authority(), err)), nil
	}
	endpoint := at.URL + mcpPath(server)
	cfg.Endpoint = func(context.Context, bool) (string, error) { return endpoint, nil }
	return cfg, nil
}

// storedElsewhere returns a client's token for a remote mesh, and the mesh's own certificate authority, or nil if it
// has none.
func (t *tool) storedElsewhere(at personal.Elsewhere, client string) (token string, authority []byte, err error) {
	raw, err := at.ReadToken(client)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("%s has no token for the mesh at %s: run %s", client, at.URL, t.command("init --http "+at.URL+" "+client))
	}
	if err != nil {
		return "", nil, fmt.Errorf("read the token of %s: %w", client, err)
	}
	authority, err = os.ReadFile(at.Authority())
	if errors.Is(err, fs.ErrNotExist) {
		authority, err = nil, nil
	}
	return strings.TrimSpace(string(raw)), authority, err
}

// servers returns the sorted names of the servers that the token may use. The result contains the servers with tools
// that the token's holder may see. It also contains the candidates that exist, even if the holder may see none of their
// tools.
func (m *meshElsewhere) servers(ctx context.Context, candidates []string) ([]string, error) {
	names, err := m.listedServers(ctx)
	if err != nil {
		return nil, err
	}
	rest := slices.DeleteFunc(slices.Clone(candidates), func(name string) bool { return slices.Contains(names, name) })
	found := make([]bool, len(rest))
	var group errgroup.Group
	group.SetLimit(maxConcurrentTrials)
	for i, name := range rest {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, elsewhereTimeout)
			defer cancel()
			session, err := openSession(ctx, m.client, m.url+mcpPath(name), m.token)
			found[i] = !isAbsent(err) // other errors are reported when the server is compared
			if err == nil {
				session.close(ctx)
			}
			return nil
		})
	}
	_ = group.Wait() // errors are in found
	for i, name := range rest {
		if found[i] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, ctx.Err()
}

// maxElsewhereServers is the maximum number of servers that a remote mesh may list. With --add, `init` connects to each
// of them.
const maxElsewhereServers = 1000

// serverNames matches valid names of servers. Other names could be mistaken for an option in the command of a client's
// entry.
var serverNames = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// listedServers returns the sorted names of the servers with tools that the token's holder may see. It returns an error
// if no mesh responds at the URL, or if the mesh does not accept the token.
func (m *meshElsewhere) listedServers(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, elsewhereTimeout)
	defer cancel()
	s := &session{url: m.url + mcpPath(""), token: m.token, http: m.client, version: protocolVersion}
	if err := m.greet(ctx, s); err != nil {
		return nil, err
	}
	defer s.close(ctx)
	raw, err := s.request(ctx, "tools/list", struct{}{}) // the list has only one page
	if err != nil {
		return nil, fmt.Errorf("list the tools of the mesh: %w", err)
	}
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the tools of the mesh: %w", err)
	}
	var names []string
	for _, tool := range list.Tools {
		if server, _, ok := strings.Cut(tool.Name, "__"); ok && serverNames.MatchString(server) {
			names = append(names, server)
		}
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) > maxElsewhereServers {
		return nil, fmt.Errorf("the mesh at %s lists %d servers, and init accepts at most %d", m.url, len(names), maxElsewhereServers)
	}
	return names, nil
}

// greet opens a session with the mesh. Its errors say whether the problem is the URL, the certificate or the token.
func (m *meshElsewhere) greet(ctx context.Context, s *session) error {
	resp, err := s.send(ctx, http.MethodPost, &message{ID: 1, Method: "initialize", Params: map[string]any{
		"protocolVersion": protocolVersion, "capabilities": struct{}{},
		"clientInfo": map[string]string{"name": "sluice", "version": app.Version()},
	}})
	if err != nil {
		return m.notReached(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only the answer matters
	answer, err := readResponse(resp)
	var greeting struct {
		Server struct {
			Name string `json:"name"`
		} `json:"serverInfo"`
	}
	isMesh := resp.StatusCode == http.StatusOK && err == nil && json.Unmarshal(answer.Result, &greeting) == nil && greeting.Server.Name == "sluice"
	if isMesh {
		s.id = resp.Header.Get("Mcp-Session-Id")
		told, err := s.send(ctx, http.MethodPost, &message{Method: "notifications/initialized"})
		if err != nil {
			return m.notReached(err)
		}
		return told.Body.Close()
	}
	return m.refused(resp, answer)
}

// notReached returns the error for a request to which the mesh did not respond.
func (m *meshElsewhere) notReached(err error) error {
	if refused, ok := errors.AsType[*tokenhttp.RefusedError](err); ok {
		return errors.New(strings.Replace(refused.Error(), "set SLUICE_URL to it", "write it after --http", 1))
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("the certificate of %s can't be verified: if the mesh has a certificate authority of its own, get its certificate from the operator of the mesh, and name the file with --ca-file (%w)", m.url, cause(err))
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") || strings.Contains(err.Error(), "first record does not look like a TLS handshake") {
		return fmt.Errorf("the server at %s does not speak TLS: check the port of the URL", m.url)
	}
	return fmt.Errorf("the mesh at %s does not answer: check the URL and the network (%w)", m.url, cause(err))
}

// cause returns the underlying error of a failed request. It omits advice that applies only to a mesh on this machine.
func cause(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// refused returns the error for a response that does not open a session.
func (m *meshElsewhere) refused(resp *http.Response, answer message) error {
	said := ""
	if answer.Error != nil {
		said = ": " + safetext.Line(answer.Error.Message)
	}
	if resp.StatusCode == http.StatusForbidden && answer.Error != nil {
		said += "\nA client needs an agent's token: with the token of an operator, an agent could approve its own calls."
	}
	ofMesh := strings.Contains(resp.Header.Get("WWW-Authenticate"), `realm="sluice"`)
	switch {
	case resp.StatusCode == http.StatusUnauthorized && ofMesh, resp.StatusCode == http.StatusForbidden && answer.Error != nil:
		return fmt.Errorf("the mesh at %s refused the token%s\nThe operator of the mesh creates a token for a client with `sluice token create CLIENT`. Name its file with --token-file", m.url, said)
	case resp.StatusCode == http.StatusBadRequest && resp.Request.URL.Scheme == "http" && answer.Error == nil:
		return fmt.Errorf("the server at %s answered %s: if the mesh has TLS, the URL begins with https://", m.url, resp.Status)
	default:
		return fmt.Errorf("the server at %s is not a Sluice gateway: it answered %s%s. Ask the operator of the mesh for its URL, which is the part before /mcp", m.url, resp.Status, said)
	}
}

// list lists the tools of a server in the mesh as a client would.
func (m *meshElsewhere) list(ctx context.Context, server string) (listedServer, error) {
	return listServer(ctx, limitedTransport(m.url+mcpPath(server), bearerTransport{m.token, m.client.Transport}))
}

// bearerTransport adds a token to requests. Its RoundTripper must be the transport of a client from [tokenhttp.New],
// which protects the token.
type bearerTransport struct {
	token string
	http.RoundTripper
}

func (b bearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// maxTokenFile is the maximum size of a file with a token or a certificate authority, in bytes.
const maxTokenFile = 1 << 20

// readSmallFile reads a regular file of at most maxTokenFile bytes.
func readSmallFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err == nil && len(raw) > maxTokenFile {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxTokenFile)
	}
	return raw, err
}
