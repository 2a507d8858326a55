package identity_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// forPeople changes the server so that each person uses her own account.
func forPeople(of *identity.OAuthServer) { of.ForEachPerson = true }

// person returns a person of the tenant "default". The person has the token with the same name.
func person(subject string) *identityv1.Person {
	return &identityv1.Person{Tenant: "default", Subject: subject}
}

// connectAs signs in at the server with the token that has the given name.
func (c *connecting) connectAs(t *testing.T, token string, forDiscovery bool) *identityv1.Connection {
	t.Helper()
	client := c.client(t, token)
	begun, err := client.StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect, ForDiscovery: forDiscovery})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.FinishConnection(t.Context(), &identityv1.FinishConnectionRequest{Attempt: begun.GetAttempt(), Code: c.server.authorize(begun.GetAuthorizationUrl())})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetConnection()
}

// tokenOf returns the access token that the gateway gets for a person, or for listing tools.
func (c *connecting) tokenOf(t *testing.T, who *identityv1.Person, forDiscovery bool) (*identityv1.GetAccessTokenResponse, error) {
	t.Helper()
	return identityv1.NewConnectionServiceClient(c.Gateway()).GetAccessToken(t.Context(), &identityv1.GetAccessTokenRequest{
		Server: "wiki", Url: c.server.URL + "/mcp", Person: who, ForDiscovery: forDiscovery,
	})
}

func (c *connecting) wantTokenOf(t *testing.T, who *identityv1.Person, forDiscovery bool, want string) {
	t.Helper()
	if got, err := c.tokenOf(t, who, forDiscovery); err != nil || got.GetAccessToken() != want {
		t.Errorf("the access token of %v is %q instead of %q: %v", who, got.GetAccessToken(), want, err)
	}
}

// seen returns the connections that the person with a token sees, one text for each.
func (c *connecting) seen(t *testing.T, token string) string {
	t.Helper()
	resp, err := c.client(t, token).ListConnections(t.Context(), new(identityv1.ListConnectionsRequest))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, one := range resp.GetConnections() {
		whose := "all"
		if one.GetForDiscovery() {
			whose = "discovery"
		}
		if who := one.GetPerson(); who != nil {
			whose = who.GetTenant() + "/" + who.GetSubject()
		}
		out = append(out, fmt.Sprint(whose, " ", one.GetState() == isConnected))
	}
	return strings.Join(out, ", ")
}

// Each person connects the server for herself, and the gateway gets a token of the account for which it asks, also after
// a restart. No request gets the token of another person.
func TestPeople_EachUsesHerOwnAccount(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", forPeople)
	for _, who := range []*identityv1.Person{person("viewer"), person("approver")} {
		_, err := s.tokenOf(t, who, false)
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	}
	if got := s.connectAs(t, "viewer", false); got.GetPerson().GetSubject() != "viewer" || got.GetForDiscovery() || got.GetState() != isConnected {
		t.Errorf("the connection is %v", got)
	}
	_, err := s.tokenOf(t, person("approver"), false)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	s.connectAs(t, "approver", false)
	if got := s.connectAs(t, "operator", true); got.GetPerson() != nil || !got.GetForDiscovery() {
		t.Errorf("the connection for listing tools is %v", got)
	}
	check := func(s *connecting) {
		s.wantTokenOf(t, person("viewer"), false, "access-token-1")
		s.wantTokenOf(t, person("approver"), false, "access-token-2")
		s.wantTokenOf(t, nil, true, "access-token-3")
		_, err := s.tokenOf(t, person("operator"), false) // the account for listing tools is not hers
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
		_, err = s.tokenOf(t, &identityv1.Person{Tenant: "acme", Subject: "viewer"}, false)
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	}
	check(s)
	s.stop()
	wantNoSecrets(t, s.data, "access-token-1", "access-token-2", "access-token-3")
	check(serveConnections(t, server, s.data, forPeople))
}

// Fifty concurrent requests for each of three accounts get the tokens of the right account.
func TestPeople_ConcurrentRequestsDoNotCross(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	s.connectAs(t, "viewer", false)
	s.connectAs(t, "approver", false)
	s.connectAs(t, "operator", true)
	var requests sync.WaitGroup
	for range 50 {
		requests.Go(func() { s.wantTokenOf(t, person("viewer"), false, "access-token-1") })
		requests.Go(func() { s.wantTokenOf(t, person("approver"), false, "access-token-2") })
		requests.Go(func() { s.wantTokenOf(t, nil, true, "access-token-3") })
	}
	requests.Wait()
}

// A request that does not fit the configuration gets no token. A gateway with another configuration would otherwise use
// one account for all callers.
func TestPeople_RequestsMustFitTheConfiguration(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveConnections(t, server, "", forPeople)
	s.connectAs(t, "operator", true)
	for name, wrong := range map[string]struct {
		who          *identityv1.Person
		forDiscovery bool
	}{"of no account": {}, "of two accounts": {person("viewer"), true}} {
		if _, err := s.tokenOf(t, wrong.who, wrong.forDiscovery); err == nil {
			t.Errorf("a request %s got a token", name)
		} else {
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "CREDENTIALS_DIFFER")
		}
	}
	s.stop()
	shared := serveConnections(t, server, s.data, nil)
	_, err := shared.tokenOf(t, nil, false) // the account was connected only for listing tools
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	_, err = shared.tokenOf(t, person("viewer"), false)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CREDENTIALS_DIFFER")
	_, err = shared.tokenOf(t, nil, true)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CREDENTIALS_DIFFER")
	_, err = shared.client(t, "viewer").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	shared.connect(t)
	shared.stop()
	again := serveConnections(t, server, s.data, forPeople)
	_, err = again.tokenOf(t, nil, true) // the account of all callers was not connected for listing tools
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
}

// A sign-in belongs to the person who has started it. Only operators connect the account for listing tools.
func TestPeople_SignInBelongsToThePerson(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	begun, err := s.client(t, "viewer").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	if err != nil {
		t.Fatal(err)
	}
	finish := &identityv1.FinishConnectionRequest{Attempt: begun.GetAttempt(), Code: s.server.authorize(begun.GetAuthorizationUrl())}
	for _, token := range []string{"approver", "operator"} {
		_, err := s.client(t, token).FinishConnection(t.Context(), finish)
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	}
	changed := &identityv1.FinishConnectionRequest{Attempt: bytes.Clone(finish.GetAttempt()), Code: finish.GetCode()}
	changed.Attempt[20] ^= 1
	_, err = s.client(t, "viewer").FinishConnection(t.Context(), changed)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED")
	if _, err := s.client(t, "viewer").FinishConnection(t.Context(), finish); err != nil {
		t.Error(err)
	}
	for _, token := range []string{"viewer", "approver", "other"} {
		_, err := s.client(t, token).StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect, ForDiscovery: true})
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	}
	_, err = s.client(t, "agent").StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
	if err == nil {
		t.Error("an agent has started a sign-in")
	}
}

// A person sees and deletes her own connections. Operators see and delete those of the people of their tenant, and
// operators of the installation all connections.
func TestPeople_SeeAndDeleteTheirOwnConnections(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	for _, token := range []string{"viewer", "approver", "other"} {
		s.connectAs(t, token, false)
	}
	for token, want := range map[string]string{
		"viewer": "discovery false, default/viewer true", "operator": "discovery false, acme/other true, default/approver true, default/viewer true", "other": "discovery false, acme/other true",
	} {
		if got := s.seen(t, token); got != want {
			t.Errorf("%s sees %q, want %q", token, got, want)
		}
	}
	remove := func(token string, req *identityv1.DeleteConnectionRequest) error {
		req.Server = "wiki"
		_, err := s.client(t, token).DeleteConnection(t.Context(), req)
		return err
	}
	rpctest.WantStatus(t, remove("viewer", &identityv1.DeleteConnectionRequest{Person: person("approver")}), codes.PermissionDenied, "TENANT_REFUSED")
	rpctest.WantStatus(t, remove("other", &identityv1.DeleteConnectionRequest{Person: person("approver")}), codes.PermissionDenied, "TENANT_REFUSED")
	rpctest.WantStatus(t, remove("viewer", &identityv1.DeleteConnectionRequest{ForDiscovery: true}), codes.PermissionDenied, "TENANT_REFUSED")
	rpctest.WantStatus(t, remove("operator", new(identityv1.DeleteConnectionRequest)), codes.NotFound, "CONNECTION_UNKNOWN")
	for token, req := range map[string]*identityv1.DeleteConnectionRequest{"viewer": {}, "operator": {Person: person("approver")}, "other": {Person: &identityv1.Person{Tenant: "acme", Subject: "other"}}} {
		if err := remove(token, req); err != nil {
			t.Errorf("%s: %v", token, err)
		}
	}
	if got := s.seen(t, "operator"); got != "discovery false" {
		t.Errorf("after the deletions: %s", got)
	}
	_, err := s.tokenOf(t, person("viewer"), false)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
}

// The account of a blocked person is not used, until the block ends.
func TestPeople_BlockedPersonsAccountIsNotUsed(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	s.connectAs(t, "viewer", false)
	s.connectAs(t, "approver", false)
	operator := identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	blocked := &identityv1.BlockedCaller{Tenant: "default", Subject: "viewer"}
	if _, err := operator.BlockCaller(t.Context(), &identityv1.BlockCallerRequest{Caller: blocked}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "her account is not used", func() bool {
		_, err := s.tokenOf(t, person("viewer"), false)
		return err != nil
	})
	_, err := s.tokenOf(t, person("viewer"), false)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_BLOCKED")
	s.wantTokenOf(t, person("approver"), false, "access-token-2")
	if _, err := operator.UnblockCaller(t.Context(), &identityv1.UnblockCallerRequest{Caller: blocked}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "her account is used again", func() bool {
		got, err := s.tokenOf(t, person("viewer"), false)
		return err == nil && got.GetAccessToken() == "access-token-1"
	})
}

// The tokens of each person are refreshed once for concurrent requests. The end of one sign-in does not end another.
func TestPeople_RefreshesAreIndependent(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", forPeople, 2*time.Hour) // so each token is refreshed at once
	s.connectAs(t, "viewer", false)
	s.connectAs(t, "approver", false)
	server.set(func(s *oauthServer) { s.expiresIn = 24 * 3600 })
	var requests sync.WaitGroup
	tokens := make(map[string]map[string]bool)
	var mu sync.Mutex
	for range 20 {
		for _, subject := range []string{"viewer", "approver"} {
			requests.Go(func() {
				got, err := s.tokenOf(t, person(subject), false)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if tokens[subject] == nil {
					tokens[subject] = make(map[string]bool)
				}
				tokens[subject][got.GetAccessToken()] = true
			})
		}
	}
	requests.Wait()
	if n := server.refreshes(); n != 2 || len(tokens["viewer"]) != 1 || len(tokens["approver"]) != 1 || maps.Equal(tokens["viewer"], tokens["approver"]) {
		t.Errorf("%d refreshes, the tokens are %v", n, tokens)
	}
}

// The authorization server does not accept the refresh token of one person any more. Another person is not affected.
func TestPeople_EndOfOneSignIn(t *testing.T) {
	t.Parallel()
	server := startOAuthServer(t)
	s := serveRefreshing(t, server, "", forPeople, 2*time.Hour)
	s.connectAs(t, "viewer", false)
	server.set(func(s *oauthServer) { s.expiresIn = 24 * 3600 })
	s.connectAs(t, "approver", false)
	server.set(func(s *oauthServer) { s.errorCode = "invalid_grant" })
	_, err := s.tokenOf(t, person("viewer"), false)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
	s.wantTokenOf(t, person("approver"), false, "access-token-2")
	if got := s.seen(t, "operator"); got != "discovery false, default/approver true, default/viewer false" {
		t.Errorf("the connections are %s", got)
	}
}

// A person can't start sign-ins without limit. Other people are not affected.
func TestPeople_SignInsAreLimited(t *testing.T) {
	t.Parallel()
	s := serveConnections(t, startOAuthServer(t), "", forPeople)
	start := func(token string) error {
		_, err := s.client(t, token).StartConnection(t.Context(), &identityv1.StartConnectionRequest{Server: "wiki", RedirectUri: testRedirect})
		return err
	}
	for i := range 20 {
		if err := start("viewer"); err != nil {
			t.Fatalf("sign-in %d: %v", i, err)
		}
	}
	rpctest.WantStatus(t, start("viewer"), codes.ResourceExhausted, "TOO_MANY_SIGN_INS")
	if err := start("approver"); err != nil {
		t.Error(err)
	}
	if n := len(s.server.registrations); n != 21 {
		t.Errorf("%d clients were registered", n)
	}
}
