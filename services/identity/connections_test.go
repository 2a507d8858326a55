package identity_test

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const testRedirect = "http://127.0.0.1:4711/callback"

// connecting is a running service that signs in at a server.
type connecting struct {
	*rpctest.Server
	server *oauthServer
	data   string
	stop   func()
}

// serveConnections starts a service with one server, whose name is wiki. The function change may change its
// configuration. data is the data directory; if it is empty, a new directory is used.
func serveConnections(t *testing.T, s *oauthServer, data string, change func(*identity.OAuthServer)) *connecting {
	t.Helper()
	return serveRefreshing(t, s, data, change, 0)
}

// serveRefreshing is like serveConnections, but refreshes access tokens the given time before their expiry.
func serveRefreshing(t *testing.T, s *oauthServer, data string, change func(*identity.OAuthServer), before time.Duration) *connecting {
	t.Helper()
	if data == "" {
		data = t.TempDir()
	}
	of := identity.OAuthServer{URL: s.URL + "/mcp"}
	if change != nil {
		change(&of)
	}
	tokens := append(rpctest.Records(), rpctest.Record("other", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR), rpctest.Record("second", "default", authv1.TokenRole_TOKEN_ROLE_OPERATOR))
	svc, valid, stop := start(t, options{tokens: tokens, servers: map[string]identity.OAuthServer{"wiki": of}, data: data, refreshBefore: before})
	eventually.Holds(t, "the tokens are valid", valid.HasSet)
	return &connecting{Server: rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: valid}), server: s, data: data, stop: stop}
}

func (c *connecting) client(t *testing.T, token string) identityv1.ConnectionServiceClient {
	t.Helper()
	return identityv1.NewConnectionServiceClient(c.Person(t, token))
}

// start starts a sign-in, and returns the page and the request that finishes the sign-in.
func (c *connecting) start(t *testing.T) (*identityv1.StartConnectionResponse, *identityv1.FinishConnectionRequest) {
	t.Helper()
	resp, err := c.client(t, "operator").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	if err != nil {
		t.Fatal(err)
	}
	return resp, &identityv1.FinishConnectionRequest{Attempt: resp.GetAttempt(), Code: c.server.authorize(resp.GetAuthorizationUrl())}
}

// connect signs in at the server.
func (c *connecting) connect(t *testing.T) *identityv1.Connection {
	t.Helper()
	_, finish := c.start(t)
	resp, err := c.client(t, "operator").FinishConnection(t.Context(), finish)
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetConnection()
}

// accessToken returns the access token that the gateway gets.
func (c *connecting) accessToken(t *testing.T, refused int64) (*identityv1.GetAccessTokenResponse, error) {
	t.Helper()
	return c.ask(t, &identityv1.GetAccessTokenRequest{RefusedGeneration: refused})
}

// ask requests the access token of the server like the gateway.
func (c *connecting) ask(t *testing.T, req *identityv1.GetAccessTokenRequest) (*identityv1.GetAccessTokenResponse, error) {
	t.Helper()
	req.Server, req.Url = "wiki", c.server.URL+"/mcp"
	return identityv1.NewConnectionServiceClient(c.Gateway()).GetAccessToken(t.Context(), req)
}

func (c *connecting) wantToken(t *testing.T, refused int64, want string) *identityv1.GetAccessTokenResponse {
	t.Helper()
	got, err := c.accessToken(t, refused)
	if err != nil || got.GetAccessToken() != want {
		t.Fatalf("the access token is %q instead of %q: %v", got.GetAccessToken(), want, err)
	}
	return got
}

// listed returns the connection that operators see.
func (c *connecting) listed(t *testing.T) *identityv1.Connection {
	t.Helper()
	resp, err := c.client(t, "operator").ListConnections(t.Context(), new(identityv1.ListConnectionsRequest))
	if err != nil || len(resp.GetConnections()) != 1 {
		t.Fatal(resp, err)
	}
	return resp.GetConnections()[0]
}

const (
	isConnected   = identityv1.ConnectionState_CONNECTION_STATE_CONNECTED
	loginRequired = identityv1.ConnectionState_CONNECTION_STATE_LOGIN_REQUIRED
)

// An operator connects a server: the mesh finds the authorization server, registers itself, and stores the tokens
// encrypted. The gateway gets the access token, also after a restart.
func TestConnection_OperatorConnectsServer(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", nil)
	if before := s.listed(t); before.GetState() != loginRequired || before.GetConnected() != nil {
		t.Errorf("before the sign-in: %v", before)
	}
	_, err := s.accessToken(t, 0)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	page, finish := s.start(t)
	query := mustParse(t, page.GetAuthorizationUrl()).Query()
	for name, want := range map[string]string{
		"client_id": "client-1", "redirect_uri": testRedirect, "resource": server.URL + "/mcp", "scope": "read offline_access", "code_challenge_method": "S256", "response_type": "code", "prompt": "consent", "state": page.GetState(),
	} {
		if query.Get(name) != want {
			t.Errorf("the parameter %s is %q instead of %q", name, query.Get(name), want)
		}
	}
	if page.GetIssuer() != server.URL || !page.GetSendsIssuer() || bytes.Contains(page.GetAttempt(), []byte("client-1")) {
		t.Errorf("the response is %v", page)
	}
	resp, err := s.client(t, "operator").FinishConnection(t.Context(), finish)
	if got := resp.GetConnection(); err != nil || got.GetState() != isConnected || got.GetConnectedBy() == "" || !got.GetHasRefreshToken() || strings.Join(got.GetScopes(), " ") != "read" {
		t.Fatalf("%v, %v", got, err)
	}
	s.wantToken(t, 0, "access-token-1")
	if listed := s.listed(t); listed.GetState() != isConnected || listed.GetIssuer() != server.URL {
		t.Errorf("the list has %v", listed)
	}
	s.stop()
	wantNoSecrets(t, s.data, "access-token-1", "refresh-token-1")
	again := serveConnections(t, server, s.data, nil)
	again.wantToken(t, 0, "access-token-1")
	if server.refreshes() != 0 {
		t.Error("a valid token was refreshed")
	}
}

// wantNoSecrets checks that no file in a directory contains one of the texts.
func wantNoSecrets(t *testing.T, dir string, texts ...string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, text := range texts {
			if bytes.Contains(raw, []byte(text)) {
				t.Errorf("%s contains %s", path, text)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	at, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// Fifty calls at once use the single-use refresh token once.
func TestConnection_ConcurrentCallsShareOneRefresh(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", nil, 2*time.Hour) // so the token is refreshed at once
	s.connect(t)
	server.set(func(s *oauthServer) { s.expiresIn = 24 * 3600 })
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if got, err := s.accessToken(t, 0); err != nil || got.GetAccessToken() != "access-token-2" {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
	calls.Wait()
	if n := server.refreshes(); n != 1 {
		t.Errorf("the token was refreshed %d times", n)
	}
}

// While the authorization server answers 429 or 503, the token is used until it expires. Then calls fail, and they
// succeed when the authorization server has recovered.
func TestConnection_AuthorizationServerIsUnavailable(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", nil, 2*time.Hour)
	s.connect(t)
	for _, status := range []int{429, 503} {
		server.set(func(s *oauthServer) { s.tokenStatus = status })
		s.wantToken(t, 0, "access-token-1")
	}
	if got := s.listed(t); got.GetState() != isConnected || !strings.Contains(got.GetProblem(), "429") {
		t.Errorf("the connection is %v", got)
	}
	if n := server.refreshes(); n != 1 {
		t.Errorf("there were %d refreshes without a pause", n)
	}
}

// The authorization server does not accept the refresh token any more. An operator has to connect the server again, and
// the refresh token is not sent again.
func TestConnection_RefusedRefreshTokenRequiresLogin(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", nil, 2*time.Hour)
	s.connect(t)
	server.set(func(s *oauthServer) { s.errorCode = "invalid_grant" })
	for range 3 {
		_, err := s.accessToken(t, 0)
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	}
	if got := s.listed(t); got.GetState() != loginRequired || !strings.Contains(got.GetProblem(), "invalid_grant") || server.refreshes() != 1 {
		t.Errorf("the connection is %v after %d refreshes", got, server.refreshes())
	}
	server.set(func(s *oauthServer) { s.errorCode, s.expiresIn = "", 24*3600 })
	s.connect(t)
	s.wantToken(t, 0, "access-token-2")
}

// A server that refuses each token causes at most one refresh in a minute. Operators see that the server refuses a new
// token, until it accepts the token or until the server is connected again.
func TestConnection_ServerRefusesTokens(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", nil)
	s.connect(t)
	wantState := func(want identityv1.ConnectionState) {
		t.Helper()
		got := s.listed(t)
		if got.GetState() != want || (got.GetProblem() == "") != (want == isConnected) {
			t.Errorf("the connection is %v", got)
		}
	}
	for range 5 {
		got := s.wantToken(t, 0, "access-token-1")
		s.wantToken(t, got.GetGeneration(), "access-token-1")
		wantState(loginRequired)
	}
	if n := server.refreshes(); n != 0 {
		t.Errorf("a new token was refreshed %d times", n)
	}
	got := s.wantToken(t, 0, "access-token-1") // nothing is known about the answers of the server
	wantState(loginRequired)
	if left := got.GetExpiresIn().AsDuration(); left < 59*time.Minute || left > time.Hour {
		t.Errorf("the token expires in %v", left)
	}
	if _, err := s.ask(t, &identityv1.GetAccessTokenRequest{AcceptedGeneration: got.GetGeneration()}); err != nil {
		t.Fatal(err)
	}
	wantState(isConnected)
	s.wantToken(t, got.GetGeneration(), "access-token-1")
	wantState(loginRequired)
	s.connect(t)
	wantState(isConnected)
}

// Without a refresh token, an operator has to connect the server again when the access token expires.
func TestConnection_WithoutRefreshToken(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	server.set(func(s *oauthServer) { s.withoutRefresh = true })
	s := serveRefreshing(t, server, "", nil, 2*time.Hour)
	if got := s.connect(t); got.GetHasRefreshToken() {
		t.Errorf("the connection is %v", got)
	}
	s.wantToken(t, 0, "access-token-1") // it is used until it expires
}

// A token is sent only to the URL at which the operator has connected the server.
func TestConnection_IsBoundToTheURL(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", nil)
	s.connect(t)
	_, err := identityv1.NewConnectionServiceClient(s.Gateway()).GetAccessToken(t.Context(), &identityv1.GetAccessTokenRequest{Server: "wiki", Url: "https://evil.example.com/mcp"})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	s.stop()
	moved := serveConnections(t, server, s.data, func(of *identity.OAuthServer) { of.URL = server.URL + "/moved" })
	if got := moved.listed(t); got.GetState() != loginRequired {
		t.Errorf("the connection of another URL is %v", got)
	}
}

// Only the operator who has started a sign-in can finish it, and only operators of the installation can start one.
func TestConnection_BelongsToTheOperator(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", nil)
	_, finish := s.start(t)
	_, err := s.client(t, "second").FinishConnection(t.Context(), finish)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	forged := &identityv1.FinishConnectionRequest{Attempt: bytes.Clone(finish.GetAttempt()), Code: "code"}
	forged.Attempt[20] ^= 1
	_, err = s.client(t, "operator").FinishConnection(t.Context(), forged)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	other := s.client(t, "other")
	_, err = other.StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	_, err = other.DeleteConnection(t.Context(), &identityv1.DeleteConnectionRequest{Server: "wiki"})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	_, err = s.client(t, "operator").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: "https://evil.example.com/callback"})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AUTHORIZATION_REFUSED")
	_, err = s.client(t, "operator").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "files", RedirectUri: testRedirect})
	rpctest.WantStatus(t, err, codes.NotFound, "SERVER_UNKNOWN")
	if authn.HomeTenant != "default" {
		t.Error("the operator `second` is of another tenant")
	}
}

// A deleted connection can't be used, and its tokens are not stored any more.
func TestConnection_IsDeleted(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", nil)
	s.connect(t)
	operator := s.client(t, "operator")
	if _, err := operator.DeleteConnection(t.Context(), &identityv1.DeleteConnectionRequest{Server: "wiki"}); err != nil {
		t.Fatal(err)
	}
	_, err := s.accessToken(t, 0)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	_, err = operator.DeleteConnection(t.Context(), &identityv1.DeleteConnectionRequest{Server: "wiki"})
	rpctest.WantStatus(t, err, codes.NotFound, "CONNECTION_UNKNOWN")
}

// Metadata that would take tokens or requests to another place are refused.
func TestConnection_RefusesMetadata(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*oauthServer){
		"another resource": func(s *oauthServer) { s.resource = map[string]any{"resource": "https://evil.example.com/mcp"} },
		"http authorization server": func(s *oauthServer) {
			s.resource = map[string]any{"authorization_servers": []string{"http://as.example.com"}}
		},
		"another issuer": func(s *oauthServer) { s.metadata = map[string]any{"issuer": "https://evil.example.com"} },
		"no PKCE":        func(s *oauthServer) { s.metadata = map[string]any{"code_challenge_methods_supported": nil} },
		"plain PKCE": func(s *oauthServer) {
			s.metadata = map[string]any{"code_challenge_methods_supported": []string{"plain"}}
		},
		"script":              func(s *oauthServer) { s.metadata = map[string]any{"authorization_endpoint": "javascript:alert(1)"} },
		"http token endpoint": func(s *oauthServer) { s.metadata = map[string]any{"token_endpoint": "http://as.example.com/token"} },
		"no registration":     func(s *oauthServer) { s.metadata = map[string]any{"registration_endpoint": nil} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startOAuthServer(t)
			server.set(change)
			s := serveConnections(t, server, "", nil)
			_, err := s.client(t, "operator").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "AUTHORIZATION_SERVER_UNUSABLE")
			if len(server.requests) != 0 {
				t.Error("the token endpoint has received a request")
			}
		})
	}
}

// A server of MCP 2025-03-26 has no metadata of its own, and is its own authorization server. A configured client is not
// registered.
func TestConnection_ConfiguredClient(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", func(of *identity.OAuthServer) {
		of.ClientID, of.ClientSecret, of.Scopes = "registered", "secret of the client", []string{"repo"}
	})
	page, finish := s.start(t)
	query := mustParse(t, page.GetAuthorizationUrl()).Query()
	if query.Get("client_id") != "registered" || query.Get("scope") != "repo" || len(server.registrations) != 0 {
		t.Errorf("the page is %s", page.GetAuthorizationUrl())
	}
	if _, err := s.client(t, "operator").FinishConnection(t.Context(), finish); err != nil {
		t.Fatal(err)
	}
	s.wantToken(t, 0, "access-token-1")
}
