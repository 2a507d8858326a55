package identity_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const testVerifier, testNonce = "verifier-verifier-verifier-verifier-verifier", "nonce-nonce-nonce-nonce"

// signInService is a running service at which people sign in at a provider.
type signInService struct {
	*rpctest.Server
	provider *provider
	tokens   *authn.Tokens
	// configure replaces the issuers of the configuration. The service reads them a little later.
	configure func(issuers string)
}

// issuerText returns the YAML of an issuer. The group sre has all roles, the group finance is for approvers and
// viewers, and the group all is for viewers.
func issuerText(p *provider) string {
	return fmt.Sprintf(`    - name: corp
      issuer: %s
      key_set: %[1]s/keys
      audiences: [agents]
      groups: {claim: /groups, optional: true}
      people: {operator: [sre], approver: [sre, finance], viewer: [sre, finance, all]}
      sign_in: {client_id: %s, client_secret: %s, session: 1h, device: true}
`, p.URL, testClient, testClientSecret)
}

func serveSignIn(t *testing.T) *signInService {
	t.Helper()
	return serveSignInWith(t, issuerText)
}

// serveSignInWith is like serveSignIn, with the issuer that a function returns.
func serveSignInWith(t *testing.T, text func(*provider) string) *signInService {
	t.Helper()
	p := startProvider(t)
	out := &signInService{provider: p}
	reload := make(chan identity.Identities, 1)
	current := identitiesOf(t, text(p))
	opts := options{reload: func() (identity.Identities, error) {
		select {
		case current = <-reload:
		default:
		}
		return current, nil
	}, tokens: current.Tokens, groups: current.Groups, issuers: current.Issuers}
	svc, tokens, _ := start(t, opts)
	eventually.Holds(t, "the tokens are valid", tokens.HasSet)
	out.tokens = tokens
	out.Server = rpctest.Serve(t, authv1.Role_ROLE_IDENTITY, svc, rpctest.Options{Tokens: tokens})
	out.configure = func(issuers string) {
		reload <- identitiesOf(t, issuers)
	}
	return out
}

// identitiesOf returns the configuration with the tokens of the tests, the group `finance` of the subject corp/ben, and
// the given issuers.
func identitiesOf(t *testing.T, issuers string) identity.Identities {
	t.Helper()
	f := load(t, "    - {name: bot, token: "+oneText+", role: agent}\n  issuers:\n"+issuers+"groups: {finance: [corp/ben]}\n", nil)
	cfg, err := identity.FromFile(f, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tokens = rpctest.Records()
	return cfg.Identities
}

func (s *signInService) client(t *testing.T, token string) identityv1.SessionServiceClient {
	t.Helper()
	return identityv1.NewSessionServiceClient(s.Person(t, token))
}

// with returns a client with the secret of a session.
func (s *signInService) with(t *testing.T, secret string) identityv1.SessionServiceClient {
	t.Helper()
	return identityv1.NewSessionServiceClient(s.WithSecret(t, secret))
}

// code returns a request with an authorization code.
func code(role authv1.TokenRole) *identityv1.CreateSessionRequest {
	return &identityv1.CreateSessionRequest{Issuer: "corp", Role: role, Grant: &identityv1.CreateSessionRequest_Code{Code: &identityv1.AuthorizationCode{
		Code: "code", RedirectUri: "http://127.0.0.1:4711/callback", CodeVerifier: testVerifier, Nonce: testNonce,
	}}}
}

// signIn signs in with an authorization code.
func (s *signInService) signIn(t *testing.T, role authv1.TokenRole) *identityv1.CreateSessionResponse {
	t.Helper()
	s.provider.set(func(p *provider) { p.nonce = testNonce })
	resp, err := s.client(t, "").CreateSession(t.Context(), code(role))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestListSignIns_ReturnsTheEndpointsOfTheIssuer(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	resp, err := s.client(t, "").ListSignIns(t.Context(), new(identityv1.ListSignInsRequest))
	if err != nil || len(resp.GetSignIns()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	one := resp.GetSignIns()[0]
	if one.GetIssuer() != "corp" || one.GetIssuerUrl() != s.provider.URL || one.GetClientId() != testClient || !slices.Equal(one.GetScopes(), []string{"openid"}) ||
		one.GetAuthorizationEndpoint() != s.provider.URL+"/authorize" || !one.GetDeviceFlow() || one.GetProblem() != "" {
		t.Errorf("%v", one)
	}
	if strings.Contains(resp.String(), testClientSecret) {
		t.Error("the answer contains the client's secret")
	}
	for range 20 {
		if _, err := s.client(t, "").ListSignIns(t.Context(), new(identityv1.ListSignInsRequest)); err != nil {
			t.Fatal(err)
		}
	}
	s.provider.set(func(p *provider) {
		if p.fetches != 1 {
			t.Errorf("the metadata was fetched %d times", p.fetches)
		}
	})
}

// A failed fetch is not repeated for each request of a stranger.
func TestListSignIns_ReportsAnIssuerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	s.provider.set(func(p *provider) { p.metadata = map[string]any{"issuer": "https://other.example.com"} })
	for range 5 {
		resp, err := s.client(t, "").ListSignIns(t.Context(), new(identityv1.ListSignInsRequest))
		if err != nil || len(resp.GetSignIns()) != 1 || resp.GetSignIns()[0].GetProblem() == "" || resp.GetSignIns()[0].GetAuthorizationEndpoint() != "" {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	s.provider.set(func(p *provider) {
		if p.fetches != 1 {
			t.Errorf("the metadata was fetched %d times", p.fetches)
		}
	})
	_, err := s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.Unavailable, "ISSUER_UNAVAILABLE")
}

func TestCreateSession_GivesTheRoleWithTheFewestRights(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	sum := sha256.Sum256([]byte(testVerifier))
	s.provider.set(func(p *provider) { p.challenge = base64.RawURLEncoding.EncodeToString(sum[:]) })
	got := s.signIn(t, 0)
	token := got.GetToken()
	if token.GetSubject() != "corp/ana" || token.GetTenant() != "default" || token.GetRole() != authv1.TokenRole_TOKEN_ROLE_VIEWER || token.GetIssuer() != "corp" ||
		!slices.Equal(token.GetGroups(), []string{"sre"}) || len(got.GetRoles()) != 3 || !strings.HasPrefix(got.GetSecret(), "slc1_s_") {
		t.Errorf("%v", got)
	}
	if life := token.GetExpires().AsTime().Sub(token.GetCreated().AsTime()); life.Hours() != 1 {
		t.Errorf("the session lasts %v", life)
	}
	s.provider.set(func(p *provider) {
		form := p.requests[0]
		if form.Get("grant_type") != "authorization_code" || form.Get("redirect_uri") != "http://127.0.0.1:4711/callback" || form.Get("client_secret") != "" {
			t.Errorf("the provider has received %v", form)
		}
	})
	me, err := s.with(t, got.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
	if err != nil || me.GetToken().GetName() != token.GetName() {
		t.Errorf("%v, %v", me, err)
	}
	// A viewer may not create tokens; an operator may.
	create := newToken("ci", "default", "ci")
	_, err = identityv1.NewIdentityServiceClient(s.WithSecret(t, got.GetSecret())).CreateToken(t.Context(), create)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
	operator := s.signIn(t, authv1.TokenRole_TOKEN_ROLE_OPERATOR)
	if _, err := identityv1.NewIdentityServiceClient(s.WithSecret(t, operator.GetSecret())).CreateToken(t.Context(), create); err != nil {
		t.Errorf("an operator who has signed in: %v", err)
	}
}

func TestCreateSession_SendsTheSecretInTheFormIfTheIssuerWantsIt(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	s.provider.set(func(p *provider) {
		p.metadata = map[string]any{"token_endpoint_auth_methods_supported": []string{"client_secret_post"}}
	})
	_, err := s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "SIGN_IN_MISCONFIGURED") // the provider of the tests accepts only Basic
	s.provider.set(func(p *provider) {
		if got := p.requests[0].Get("client_secret"); got != testClientSecret {
			t.Errorf("the form contains the secret %q", got)
		}
	})
}

func TestCreateSession_RefusesWrongSignIns(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	for name, c := range map[string]struct {
		change func(*provider)
		edit   func(*identityv1.CreateSessionRequest)
		code   codes.Code
		reason string
	}{
		"an unknown issuer":         {edit: func(r *identityv1.CreateSessionRequest) { r.Issuer = "other" }, code: codes.NotFound, reason: "SIGN_IN_UNKNOWN"},
		"another code":              {edit: func(r *identityv1.CreateSessionRequest) { r.GetCode().Code = "stolen" }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"another nonce":             {edit: func(r *identityv1.CreateSessionRequest) { r.GetCode().Nonce = "other-other-other-other" }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"a redirect to a host":      {edit: redirectTo("https://evil.example.com/callback"), code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"a redirect to a name":      {edit: redirectTo("http://localhost.evil.example.com/"), code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"a role that no group has":  {change: func(p *provider) { p.claims = map[string]any{"groups": []string{"finance"}} }, edit: func(r *identityv1.CreateSessionRequest) { r.Role = authv1.TokenRole_TOKEN_ROLE_OPERATOR }, code: codes.PermissionDenied, reason: "ROLE_REFUSED"},
		"no group with a role":      {change: func(p *provider) { p.claims = map[string]any{"groups": []string{"guests"}} }, code: codes.PermissionDenied, reason: "ROLE_REFUSED"},
		"no groups":                 {change: func(p *provider) { p.claims = map[string]any{"groups": nil} }, code: codes.PermissionDenied, reason: "ROLE_REFUSED"},
		"the role agent":            {edit: func(r *identityv1.CreateSessionRequest) { r.Role = authv1.TokenRole_TOKEN_ROLE_AGENT }, code: codes.PermissionDenied, reason: "ROLE_REFUSED"},
		"an audience of agents":     {change: func(p *provider) { p.claims = map[string]any{"aud": "agents"} }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"another authorized party":  {change: func(p *provider) { p.claims = map[string]any{"azp": "another-client"} }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"an expired ID token":       {change: func(p *provider) { p.claims = map[string]any{"exp": 1} }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"a subject with a control":  {change: func(p *provider) { p.claims = map[string]any{"sub": "a\x00b"} }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"a person who has refused":  {change: func(p *provider) { p.errorCode = "access_denied" }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"an error of the provider":  {change: func(p *provider) { p.errorCode = "server_error" }, code: codes.Unavailable, reason: "ISSUER_UNAVAILABLE"},
		"a client that is refused":  {change: func(p *provider) { p.errorCode = "unauthorized_client" }, code: codes.FailedPrecondition, reason: "SIGN_IN_MISCONFIGURED"},
		"several audiences":         {change: func(p *provider) { p.claims = map[string]any{"aud": []string{"agents", testClient}} }, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
		"an unfinished device flow": {change: func(p *provider) { p.errorCode = "authorization_pending" }, edit: byDevice, code: codes.FailedPrecondition, reason: "SIGN_IN_PENDING"},
		"too many questions":        {change: func(p *provider) { p.errorCode = "slow_down" }, edit: byDevice, code: codes.FailedPrecondition, reason: "SIGN_IN_SLOW_DOWN"},
		"a device code that ended":  {change: func(p *provider) { p.errorCode = "expired_token" }, edit: byDevice, code: codes.PermissionDenied, reason: "SIGN_IN_REFUSED"},
	} {
		t.Run(name, func(t *testing.T) {
			s.provider.set(func(p *provider) {
				p.nonce, p.claims, p.errorCode = testNonce, nil, ""
				if c.change != nil {
					c.change(p)
				}
			})
			req := code(0)
			if c.edit != nil {
				c.edit(req)
			}
			_, err := s.client(t, "").CreateSession(t.Context(), req)
			rpctest.WantStatus(t, err, c.code, c.reason)
			if err != nil && (strings.Contains(err.Error(), testClientSecret) || strings.Contains(err.Error(), "said the provider")) {
				t.Errorf("a stranger receives the client's secret, or a text of the provider: %v", err)
			}
		})
	}
}

// redirectTo returns a function that changes the redirect URI of a request.
func redirectTo(uri string) func(*identityv1.CreateSessionRequest) {
	return func(r *identityv1.CreateSessionRequest) { r.GetCode().RedirectUri = uri }
}

// byDevice replaces the grant of a request with a device code.
func byDevice(r *identityv1.CreateSessionRequest) {
	r.Grant = &identityv1.CreateSessionRequest_DeviceCode{DeviceCode: "device"}
}

func TestCreateSession_ByDevice(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	started, err := s.client(t, "").StartDeviceSignIn(t.Context(), &identityv1.StartDeviceSignInRequest{Issuer: "corp"})
	if err != nil || started.GetUserCode() != "ABCD" || started.GetInterval().AsDuration().Seconds() != 1 || started.GetVerificationUri() != s.provider.URL+"/enter" {
		t.Fatalf("%v, %v", started, err)
	}
	req := code(0)
	req.Grant = &identityv1.CreateSessionRequest_DeviceCode{DeviceCode: started.GetDeviceCode()}
	resp, err := s.client(t, "").CreateSession(t.Context(), req)
	if err != nil || resp.GetToken().GetSubject() != "corp/ana" {
		t.Errorf("%v, %v", resp, err)
	}
	s.provider.set(func(p *provider) {
		if got := p.requests[0].Get("grant_type"); got != "urn:ietf:params:oauth:grant-type:device_code" {
			t.Errorf("the grant type is %q", got)
		}
	})
}

// An agent can't sign in with the access token that its person has given to it, because the audience of that token is
// not the client of the mesh.
func TestCreateSession_ByIDToken(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	present := func(token string) (*identityv1.CreateSessionResponse, error) {
		return s.client(t, "").CreateSession(t.Context(), &identityv1.CreateSessionRequest{Issuer: "corp", Grant: &identityv1.CreateSessionRequest_Jwt{Jwt: token}})
	}
	if resp, err := present(s.provider.idToken("JWT", nil)); err != nil || resp.GetToken().GetSubject() != "corp/ana" {
		t.Errorf("an ID token: %v, %v", resp, err)
	}
	for name, token := range map[string]string{
		"an access token of an agent": s.provider.idToken("at+jwt", map[string]any{"aud": "agents"}),
		"an access token":             s.provider.idToken("at+jwt", nil),
		"a forged token":              s.provider.idToken("JWT", nil) + "x",
		"no token":                    "x",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := present(token)
			rpctest.WantStatus(t, err, codes.PermissionDenied, "SIGN_IN_REFUSED")
		})
	}
}

// The groups of the configuration count, too.
func TestCreateSession_CountsGroupsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	s.provider.set(func(p *provider) { p.claims = map[string]any{"sub": "ben", "groups": []string{}} })
	got := s.signIn(t, authv1.TokenRole_TOKEN_ROLE_APPROVER)
	me, err := s.with(t, got.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
	if err != nil || !slices.Equal(me.GetToken().GetGroups(), []string{"finance"}) {
		t.Errorf("%v, %v", me, err)
	}
}

func TestEndSession_EndsOnlyTheSessionOfTheCaller(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	one, other := s.signIn(t, 0), s.signIn(t, 0)
	if _, err := s.with(t, one.GetSecret()).EndSession(t.Context(), new(identityv1.EndSessionRequest)); err != nil {
		t.Fatal(err)
	}
	_, err := s.with(t, one.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
	rpctest.WantStatus(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	if err == nil || !strings.Contains(err.Error(), "sign in again") {
		t.Errorf("the error is %v", err)
	}
	if _, err := s.with(t, other.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest)); err != nil {
		t.Errorf("the other session: %v", err)
	}
	_, err = s.client(t, "operator").EndSession(t.Context(), new(identityv1.EndSessionRequest))
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "NOT_A_SESSION")
}

// An operator ends the session of a person, but can't rotate the token of the session, because the person would not
// receive the new secret.
func TestRevokeToken_EndsASession(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	session, operator := s.signIn(t, 0), identityv1.NewIdentityServiceClient(s.Person(t, "operator"))
	name := session.GetToken().GetName()
	_, err := operator.RotateToken(t.Context(), &identityv1.RotateTokenRequest{Name: name})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "TOKEN_IS_SESSION")
	if _, err := operator.RevokeToken(t.Context(), &identityv1.RevokeTokenRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
	_, err = s.with(t, session.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
	rpctest.WantStatus(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
}

func TestCreateSession_EndsTheOldestOfTooManySessions(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	var secrets []string
	for range 11 {
		secrets = append(secrets, s.signIn(t, 0).GetSecret())
	}
	for i, secret := range secrets {
		_, err := s.with(t, secret).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
		if isValid := err == nil; isValid != (i > 0) {
			t.Errorf("session %d: %v", i, err)
		}
	}
}

// A session ends when the configuration no longer gives its role to a group of the person.
func TestSession_EndsWithItsRole(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	operator, viewer := s.signIn(t, authv1.TokenRole_TOKEN_ROLE_OPERATOR), s.signIn(t, 0)
	s.configure(strings.Replace(issuerText(s.provider), "operator: [sre]", "operator: [admins]", 1))
	isValid := func(of *identityv1.CreateSessionResponse) bool {
		_, err := s.with(t, of.GetSecret()).GetCaller(t.Context(), new(identityv1.GetCallerRequest))
		return err == nil
	}
	eventually.Holds(t, "the session of the operator has ended", func() bool { return !isValid(operator) })
	if !isValid(viewer) {
		t.Error("the session of the viewer has ended, too")
	}
}

// Strangers can have only a few requests at a time. All further requests are refused.
func TestCreateSession_BoundsRequestsOfStrangers(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	s.provider.set(func(*provider) { // while the lock is held, the provider does not answer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results := make(chan error, 20)
		for range cap(results) {
			client := s.client(t, "")
			go func() {
				_, err := client.CreateSession(ctx, code(0))
				results <- err
			}()
		}
		for range cap(results) - 4 {
			rpctest.WantStatus(t, <-results, codes.ResourceExhausted, "SIGN_IN_BUSY")
		}
	})
}

// If the claim `sub` of a person differs between clients, the subject of a session differs from the owner of the
// person's agents. The person could then approve the calls of these agents.
func TestCreateSession_RefusesSubjectsThatDifferBetweenClients(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	s.provider.set(func(p *provider) {
		p.metadata, p.nonce = map[string]any{"subject_types_supported": []string{"pairwise"}}, testNonce
	})
	_, err := s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "SIGN_IN_MISCONFIGURED")
}

// A person who has signed in to decide on an approval may do so: only tokens that operators create must be older than
// the approval.
func TestSession_IsNotTooNewForAnApproval(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	p, err := s.tokens.Lookup(s.signIn(t, authv1.TokenRole_TOKEN_ROLE_APPROVER).GetSecret())
	if err != nil || p.GetTokenCreated() != nil || p.GetSubject() != "corp/ana" {
		t.Errorf("%v, %v", p, err)
	}
}

// The subject of a session is the owner of the person's agents.
func TestSession_HasTheSubjectThatOwnsAgents(t *testing.T) {
	t.Parallel()
	s := serveSignInWith(t, func(p *provider) string {
		return strings.Replace(issuerText(p), "      people:", "      subject: \"corp/{/azp}/{/sub}\"\n      owner: \"people/{/sub}\"\n      people:", 1)
	})
	s.provider.set(func(p *provider) { p.claims = map[string]any{"azp": testClient} })
	if got := s.signIn(t, 0).GetToken().GetSubject(); got != "people/ana" {
		t.Errorf("the subject is %q", got)
	}
}

func TestCreateSession_BoundsSignInsOfAPerson(t *testing.T) {
	t.Parallel()
	s := serveSignIn(t)
	for range 20 {
		s.signIn(t, 0)
	}
	_, err := s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "SIGN_IN_TOO_OFTEN")
}

// An actor can't sign in as the person for whom it acts, even if agents may act for people at the gateway.
func TestCreateSession_RefusesTokensOfActors(t *testing.T) {
	t.Parallel()
	s := serveSignInWith(t, func(p *provider) string {
		return strings.Replace(issuerText(p), "      people:", "      delegation: act\n      people:", 1)
	})
	s.signIn(t, 0)
	s.provider.set(func(p *provider) { p.claims = map[string]any{"act": map[string]any{"sub": "bot"}} })
	_, err := s.client(t, "").CreateSession(t.Context(), code(0))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "SIGN_IN_REFUSED")
}
