package identity_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// startAs starts a sign-in with the token of a person. It returns a function that finishes the sign-in with a code.
func (c *connecting) startAs(t *testing.T, token string) (page string, finish func(code string) (*identityv1.Connection, error)) {
	t.Helper()
	begun, err := c.client(t, token).StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	if err != nil {
		t.Fatal(err)
	}
	c.server.authorize(begun.GetAuthorizationUrl())
	return begun.GetAuthorizationUrl(), func(code string) (*identityv1.Connection, error) {
		resp, err := c.client(t, token).FinishConnection(t.Context(), &identityv1.FinishConnectionRequest{Attempt: begun.GetAttempt(), Code: code})
		return resp.GetConnection(), err
	}
}

// exchanged returns the number of requests to the token endpoint.
func (s *oauthServer) exchanged() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// At most three codes are exchanged for a sign-in, and none after it has succeeded.
func TestSignIn_EndsAfterSuccessOrThreeCodes(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	_, finish := s.startAs(t, "viewer")
	for range 3 {
		_, err := finish("invented")
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "AUTHORIZATION_REFUSED")
	}
	_, err := finish("code")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	_, finish = s.startAs(t, "viewer")
	if _, err := finish("code"); err != nil {
		t.Fatal(err)
	}
	_, err = finish("code")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	if n := s.server.exchanged(); n != 4 {
		t.Errorf("%d codes were exchanged", n)
	}
}

// A person can't make the mesh exchange codes without limit. Other people are not affected.
func TestSignIn_InvalidCodesAreLimited(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	var err error
	for range 6 {
		_, finish := s.startAs(t, "viewer")
		for range 3 {
			_, err = finish("invented")
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "AUTHORIZATION_REFUSED")
		}
	}
	_, finish := s.startAs(t, "viewer")
	for range 2 {
		_, err = finish("invented")
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "AUTHORIZATION_REFUSED")
	}
	_, err = finish("invented")
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "TOO_MANY_SIGN_INS")
	_, err = s.client(t, "viewer").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "TOO_MANY_SIGN_INS")
	if n := s.server.exchanged(); n != 20 {
		t.Errorf("%d codes were exchanged", n)
	}
	s.connectAs(t, "approver", false)
}

// A person has to consent to the use of her own account, unless the configuration says otherwise.
func TestSignIn_AsksForConsent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ofPerson     bool
		scope        string
		prompt, want string
	}{
		"a person":                      {true, "read", "", "consent"},
		"a person, login":               {true, "read", "login", "login"},
		"a person, omitted":             {true, "offline_access", "omit", ""},
		"all callers":                   {false, "read", "", ""},
		"all callers, a refresh token":  {false, "offline_access", "", "consent"},
		"all callers, selected account": {false, "offline_access", "select_account", "select_account"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveConnections(t, startOAuthServer(t), "", func(of *identity.OAuthServer) {
				of.ForEachPerson, of.Scopes, of.Prompt = c.ofPerson, []string{c.scope}, c.prompt
			})
			page, _ := s.startAs(t, "operator")
			query := mustParse(t, page).Query()
			if query.Get("prompt") != c.want || query.Has("prompt") != (c.want != "") || query.Has("nonce") {
				t.Errorf("the page is %s", page)
			}
		})
	}
}

// The ID token names the account. The person sees the name after the sign-in, and later in the list.
func TestSignIn_NamesTheAccount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claims map[string]any
		want   string
	}{
		"a user name":               {map[string]any{"preferred_username": "ana", "email": "ana@example.com"}, "ana"},
		"an address":                {map[string]any{"email": "ana@example.com"}, "ana@example.com"},
		"an identifier":             {map[string]any{"aud": []string{"client-1"}}, "248289761001"},
		"control characters":        {map[string]any{"preferred_username": "ana\n\x00b"}, "ana  b"},
		"a long name":               {map[string]any{"preferred_username": strings.Repeat("é", 200)}, strings.Repeat("é", 128)},
		"no ID token":               {nil, ""},
		"another issuer":            {map[string]any{"iss": "https://evil.example.com"}, ""},
		"another client":            {map[string]any{"aud": "other"}, ""},
		"another client as party":   {map[string]any{"aud": []string{"client-1", "other"}, "azp": "other"}, ""},
		"an expired token":          {map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}, ""},
		"no expiry":                 {map[string]any{"exp": nil}, ""},
		"another sign-in":           {map[string]any{"nonce": "other"}, ""},
		"no nonce":                  {map[string]any{"nonce": nil}, ""},
		"a name that is not a text": {map[string]any{"preferred_username": 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startOAuthServer(t)
			server.set(func(s *oauthServer) { s.idToken = c.claims })
			s := serveConnections(t, server, "", func(of *identity.OAuthServer) {
				of.ForEachPerson, of.Scopes = true, []string{"openid"}
			})
			if got := s.connectAs(t, "viewer", false).GetAccountName(); got != c.want {
				t.Errorf("the name of the account is %q instead of %q", got, c.want)
			}
			resp, err := s.client(t, "viewer").ListConnections(t.Context(), new(identityv1.ListConnectionsRequest))
			if err != nil || len(resp.GetConnections()) != 2 || resp.GetConnections()[1].GetAccountName() != c.want {
				t.Errorf("the list is %v, %v", resp, err)
			}
		})
	}
}

// Only operators see the account that belongs to no person.
func TestSignIn_AccountOfNoPersonIsNamedForOperators(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	server.set(func(s *oauthServer) { s.idToken = map[string]any{"email": "team@example.com"} })
	s := serveConnections(t, server, "", func(of *identity.OAuthServer) { of.Scopes = []string{"openid"} })
	s.connect(t)
	for token, want := range map[string]string{"operator": "team@example.com", "viewer": "", "other": ""} {
		resp, err := s.client(t, token).ListConnections(t.Context(), new(identityv1.ListConnectionsRequest))
		if err != nil || len(resp.GetConnections()) != 1 || resp.GetConnections()[0].GetAccountName() != want {
			t.Errorf("%s sees %v, %v", token, resp, err)
		}
	}
	if _, err := s.client(t, "operator").DeleteConnection(t.Context(), &identityv1.DeleteConnectionRequest{Server: "wiki"}); err != nil {
		t.Fatal(err)
	}
	if got := s.listed(t).GetAccountName(); got != "" {
		t.Errorf("the deleted connection has the name %q", got)
	}
}
