package identity_test

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// notEarly is long enough for a test to notice that something happens too early.
const notEarly = 300 * time.Millisecond

// A service that stops during a refresh stores the new tokens first. Otherwise the refresh token, which can be used
// only once, would be lost.
func TestConnection_ShutdownWaitsForTheRefresh(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", nil, 2*time.Hour)
	s.connect(t)
	received, release, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	server.set(func(s *oauthServer) {
		s.expiresIn = 24 * 3600
		s.hold = func() {
			close(received)
			<-release
		}
	})
	go func() { _, _ = s.accessToken(t, 0) }() // the result depends on when the service stops
	<-received
	go func() {
		defer close(stopped)
		s.stop()
	}()
	select {
	case <-stopped:
		t.Error("the service has not waited for the refresh")
	case <-time.After(notEarly):
	}
	close(release)
	<-stopped
	serveConnections(t, server, s.data, nil).wantToken(t, 0, "access-token-2")
}

// A new client secret in the configuration is used for the next refresh. As long as the configuration has the old one,
// the connection does not end.
func TestConnection_ClientSecretIsRotated(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ secret, token, problem string }{
		"in the configuration": {"secret-two", "access-token-2", ""}, "not in the configuration": {"secret-one", "access-token-1", "credentials.oauth.client_secret"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startOAuthServer(t)
			server.set(func(s *oauthServer) { s.secret = "secret-one" })
			configured := func(secret string) func(*identity.OAuthServer) {
				return func(of *identity.OAuthServer) { of.ClientID, of.ClientSecret = "registered", secret }
			}
			s := serveConnections(t, server, "", configured("secret-one"))
			s.connect(t)
			s.stop()
			server.set(func(s *oauthServer) { s.secret, s.expiresIn = "secret-two", 24*3600 })
			again := serveRefreshing(t, server, s.data, configured(c.secret), 2*time.Hour)
			again.wantToken(t, 0, c.token)
			if got := again.listed(t); got.GetState() != isConnected || !strings.Contains(got.GetProblem(), c.problem) || (got.GetProblem() == "") != (c.problem == "") {
				t.Errorf("the connection is %v", got)
			}
			if n := server.refreshes(); n != 1 {
				t.Errorf("there were %d refreshes", n)
			}
		})
	}
}

// The tokens of another client or of another authorization server are not used, and the refresh token is not sent. They
// can be used again if the configuration is restored.
func TestConnection_ChangedClientRequiresLogin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(*identity.OAuthServer)
		problem string
	}{
		"another client":               {func(of *identity.OAuthServer) { of.ClientID = "other" }, "credentials.oauth.client_id"},
		"a client that is removed":     {func(of *identity.OAuthServer) { of.ClientID, of.ClientSecret = "", "" }, "credentials.oauth.client_id"},
		"another authorization server": {func(of *identity.OAuthServer) { of.Issuer = "https://as.example.com" }, "credentials.oauth.issuer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startOAuthServer(t)
			configured := func(of *identity.OAuthServer) { of.ClientID, of.Issuer = "registered", server.URL+"/" }
			s := serveConnections(t, server, "", func(of *identity.OAuthServer) { of.ClientID = "registered" })
			s.connect(t)
			_, begun := s.start(t)
			s.stop()
			changed := serveRefreshing(t, server, s.data, func(of *identity.OAuthServer) { configured(of); c.change(of) }, 2*time.Hour)
			_, err := changed.accessToken(t, 0)
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
			if got := changed.listed(t); got.GetState() != loginRequired || !strings.Contains(got.GetProblem(), c.problem) {
				t.Errorf("the connection is %v", got)
			}
			_, err = changed.client(t, "operator").FinishConnection(t.Context(), begun)
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
			if n := server.refreshes(); n != 0 {
				t.Errorf("the refresh token was sent %d times", n)
			}
			changed.stop()
			serveConnections(t, server, s.data, configured).wantToken(t, 0, "access-token-1")
		})
	}
}

// While another replica refreshes the token, a call waits for the result instead of failing with the error of an
// earlier refresh.
func TestConnection_EarlierProblemDoesNotCountDuringARefresh(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", nil, 2*time.Hour)
	s.connect(t)
	server.set(func(s *oauthServer) { s.expiresIn = 24 * 3600 })
	other, err := store.Open(t.Context(), store.Config{Source: "sqlite", File: filepath.Join(s.data, "identity", "identity.db"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	begin := func() {
		t.Helper()
		if _, begun, err := other.BeginRefresh(t.Context(), store.Key{Server: "wiki"}, 1, "other", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
	}
	fail := func() {
		t.Helper()
		if err := other.FailRefresh(t.Context(), store.Key{Server: "wiki"}, 1, "other", "HTTP 503", false, 0); err != nil {
			t.Fatal(err)
		}
	}
	begin()
	fail()
	begin()
	ended := make(chan error, 1)
	go func() {
		got, err := s.accessToken(t, 1)
		if err == nil && got.GetAccessToken() != "access-token-2" {
			t.Errorf("the token is %s", got.GetAccessToken())
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the call has not waited: %v", err)
	case <-time.After(notEarly):
	}
	fail()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The proxy of a server's configuration is used for the server's metadata and for its authorization server.
func TestConnection_UsesTheProxyOfTheServer(t *testing.T) {
	t.Parallel()
	server := newOAuthServer()
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy := startProxy(t, server.Listener.Addr().String())
	server.URL = "https://example.com" // the certificate of httptest is for this name
	s := serveRefreshing(t, server, "", func(of *identity.OAuthServer) {
		of.CA, of.Proxy = certificateOf(server.Server), proxy.URL
	}, 2*time.Hour)
	s.connect(t)
	server.set(func(s *oauthServer) { s.expiresIn = 24 * 3600 })
	s.wantToken(t, 0, "access-token-2")
	hosts := proxy.hosts()
	if len(hosts) == 0 || slices.ContainsFunc(hosts, func(host string) bool { return host != "example.com:443" }) {
		t.Errorf("the proxy was asked for %q", hosts)
	}
}
