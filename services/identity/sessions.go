package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// sessionName is the prefix of the names of sessions. nameLength is the number of random characters after it.
	sessionName = "login-"
	nameLength  = 12
	// knownTimeout is the maximum time that a sign-in waits for all services to accept the session.
	knownTimeout = time.Second
	// deviceLife is how long a device code is valid if the issuer's response has no lifetime. deviceInterval is the
	// minimum time between two requests of the device flow if the response has no interval (RFC 8628, section 3.2).
	deviceLife     = 10 * time.Minute
	deviceInterval = 5 * time.Second
)

var (
	errRoleRefused = errors.New("the person may not have this role")
	errIsBlocked   = errors.New("an operator has blocked this person")
	errNotSession  = errors.New("the token was not created by a sign-in: an operator can revoke it with `sluice token revoke`, or remove it from the configuration")
	errUnknownSelf = errors.New("the token has ended since the call began")
)

// sessions implements identityv1.SessionServiceServer. It is safe for concurrent use.
type sessions struct {
	identityv1.UnimplementedSessionServiceServer
	*Service
}

// ListSignIns implements identityv1.SessionServiceServer.
func (s sessions) ListSignIns(ctx context.Context, _ *identityv1.ListSignInsRequest) (*identityv1.ListSignInsResponse, error) {
	end, err := s.limits.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	resp := new(identityv1.ListSignInsResponse)
	var fetches sync.WaitGroup
	for _, one := range s.tokens.identities().Issuers {
		if one.SignIn.ClientID == "" {
			continue
		}
		out := &identityv1.SignIn{Issuer: one.Mapping.GetName(), IssuerUrl: one.Mapping.GetIssuer(), ClientId: one.SignIn.ClientID, Scopes: one.SignIn.Scopes}
		resp.SignIns = append(resp.SignIns, out)
		fetches.Go(func() {
			metadata, err := s.metadata.get(ctx, one.source)
			if err != nil {
				s.logFailure(ctx, out.GetIssuer(), nil, err)
				out.Problem = errNoAnswer.Error()
				return
			}
			out.AuthorizationEndpoint, out.DeviceFlow, out.SendsIssuer = metadata.AuthorizationEndpoint, one.SignIn.Device && metadata.DeviceEndpoint != "", metadata.SendsIssuer
		})
	}
	fetches.Wait()
	return resp, nil
}

// StartDeviceSignIn implements identityv1.SessionServiceServer.
func (s sessions) StartDeviceSignIn(ctx context.Context, req *identityv1.StartDeviceSignInRequest) (*identityv1.StartDeviceSignInResponse, error) {
	end, err := s.limits.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	resp, err := s.startDevice(ctx, req)
	if err != nil {
		s.logFailure(ctx, req.GetIssuer(), nil, err)
		return nil, signInStatus(err)
	}
	return resp, nil
}

func (s sessions) startDevice(ctx context.Context, req *identityv1.StartDeviceSignInRequest) (*identityv1.StartDeviceSignInResponse, error) {
	of, err := s.signInAt(req.GetIssuer())
	if err != nil {
		return nil, err
	}
	ctx, config, end, err := s.oauth(ctx, of)
	if err != nil {
		return nil, err
	}
	defer end()
	if config.Endpoint.DeviceAuthURL == "" {
		return nil, errNoDevice
	}
	answer, err := deviceAuth(ctx, config, authenticationParameters(req.GetAuthentication()))
	if err != nil {
		return nil, oauthError(err)
	}
	for _, page := range []string{answer.VerificationURI, answer.VerificationURIComplete} {
		if err := issuerkeys.CheckURL(page); err != nil && page != "" {
			return nil, detailedError{errNoAnswer, err.Error()}
		}
	}
	left := deviceLife
	if !answer.Expiry.IsZero() {
		left = time.Until(answer.Expiry)
	}
	interval := time.Duration(answer.Interval) * time.Second
	if interval <= 0 {
		interval = deviceInterval
	}
	return &identityv1.StartDeviceSignInResponse{
		DeviceCode: answer.DeviceCode, UserCode: answer.UserCode, VerificationUri: answer.VerificationURI, VerificationUriComplete: answer.VerificationURIComplete,
		ExpiresIn: durationpb.New(left), Interval: durationpb.New(interval),
	}, nil
}

// deviceAuth requests a device code. The client must authenticate as it does at the token endpoint (RFC 8628, section
// 3.1). Package oauth2 does not send the client's secret, so deviceAuth adds it. options contains further parameters.
func deviceAuth(ctx context.Context, config *oauth2.Config, options []oauth2.AuthCodeOption) (*oauth2.DeviceAuthResponse, error) {
	if config.ClientSecret == "" {
		return config.DeviceAuth(ctx, options...)
	}
	if config.Endpoint.AuthStyle == oauth2.AuthStyleInParams {
		return config.DeviceAuth(ctx, append(options, oauth2.SetAuthURLParam("client_secret", config.ClientSecret))...)
	}
	client, _ := ctx.Value(oauth2.HTTPClient).(*http.Client)
	with := &http.Client{Transport: basicAuth{client.Transport, config}, Timeout: client.Timeout, CheckRedirect: client.CheckRedirect}
	return config.DeviceAuth(context.WithValue(ctx, oauth2.HTTPClient, with), options...)
}

// basicAuth adds the client's secret to requests (RFC 6749, section 2.3.1).
type basicAuth struct {
	http.RoundTripper
	config *oauth2.Config
}

func (b basicAuth) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.SetBasicAuth(url.QueryEscape(b.config.ClientID), url.QueryEscape(b.config.ClientSecret))
	return b.RoundTripper.RoundTrip(req)
}

// signInAt returns the issuer with the given name, if people can sign in there.
func (s *Service) signInAt(name string) (*Issuer, error) {
	for _, one := range s.tokens.identities().Issuers {
		if one.Mapping.GetName() == name && one.SignIn.ClientID != "" {
			return &one, nil
		}
	}
	return nil, errSignInUnknown
}

// CreateSession implements identityv1.SessionServiceServer.
func (s sessions) CreateSession(ctx context.Context, req *identityv1.CreateSessionRequest) (*identityv1.CreateSessionResponse, error) {
	end, err := s.limits.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	person, of, err := s.signIn(ctx, req)
	var resp *identityv1.CreateSessionResponse
	if err == nil {
		resp, err = s.createSession(ctx, person, of, req.GetRole())
	}
	if !errors.Is(err, errPending) && !errors.Is(err, errSlowDown) {
		s.metrics.recordSignIn(ctx, req.GetIssuer(), of != nil, err)
	}
	if err != nil {
		s.logFailure(ctx, req.GetIssuer(), person, err)
		return nil, signInStatus(err)
	}
	return resp, nil
}

// signIn returns the person whom the request identifies, and the issuer. The issuer is nil if it is unknown.
func (s sessions) signIn(ctx context.Context, req *identityv1.CreateSessionRequest) (*identityv1.Principal, *Issuer, error) {
	of, err := s.signInAt(req.GetIssuer())
	if err != nil {
		return nil, nil, err
	}
	token, nonce := req.GetJwt(), ""
	switch grant := req.GetGrant().(type) {
	case *identityv1.CreateSessionRequest_Code:
		nonce = grant.Code.GetNonce()
		token, err = s.exchangeCode(ctx, of, grant.Code)
	case *identityv1.CreateSessionRequest_DeviceCode:
		token, err = s.exchangeDevice(ctx, of, grant.DeviceCode)
	}
	if err != nil {
		return nil, of, err
	}
	person, err := s.verifyIDToken(ctx, of, token, nonce)
	if err == nil {
		err = limitAuthentication(person, req.GetAuthentication(), of.Mapping.GetLeeway().AsDuration(), time.Now())
	}
	return person, of, err
}

// rolesFor returns the roles that the person may have. It returns an error if the person may have no role, or may not
// have the requested role.
func (s sessions) rolesFor(person *identityv1.Principal, of *Issuer, want authv1.TokenRole) ([]authv1.TokenRole, error) {
	groups := s.tokens.identities().groupsOf(&identityv1.Token{Tenant: person.GetTenant(), Subject: person.GetSubject(), Groups: person.GetGroups()})
	roles := of.SignIn.rolesOf(groups)
	switch {
	case s.deps.Tokens.IsBlocked(person):
		return nil, fmt.Errorf("%s: %w", person.GetSubject(), errIsBlocked)
	case len(roles) == 0:
		return nil, fmt.Errorf("%w: no group of %s has a role: ask an operator to add a group to `people` of the issuer %s; the groups are: %s", errRoleRefused, person.GetSubject(), of.Mapping.GetName(), orNone(groups))
	case want != authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED && !slices.Contains(roles, want):
		return nil, fmt.Errorf("%w: %s may be %s, but not %s", errRoleRefused, person.GetSubject(), roleNames(roles), enum.Name(want))
	}
	return roles, nil
}

func roleNames(roles []authv1.TokenRole) string {
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = enum.Name(role)
	}
	return strings.Join(names, ", ")
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// logFailure logs a failed sign-in. person is nil if the person is unknown. Failures without a known person are
// counted, and logged at most once a minute.
func (s sessions) logFailure(ctx context.Context, issuer string, person *identityv1.Principal, err error) {
	count := 1
	if errors.Is(err, errPending) || errors.Is(err, errSlowDown) {
		return
	}
	if person == nil {
		if count = s.limits.failures.add(time.Now()); count == 0 {
			return
		}
	}
	s.deps.Log.WarnContext(ctx, "sign-ins have failed", "count", count, "issuer", shorten(issuer), "subject", person.GetSubject(), "tenant", person.GetTenant(), "last_error", err)
}

// createSession stores a session, and waits until all services accept its token, or until ctx is done.
func (s sessions) createSession(ctx context.Context, person *identityv1.Principal, of *Issuer, want authv1.TokenRole) (*identityv1.CreateSessionResponse, error) {
	roles, err := s.rolesFor(person, of, want)
	if err != nil {
		return nil, err
	}
	if want == authv1.TokenRole_TOKEN_ROLE_UNSPECIFIED {
		want = roles[0]
	}
	secret := authn.NewSessionSecret()
	t := store.Token{
		Name: sessionName + strings.ToLower(rand.Text()[:nameLength]), Tenant: person.GetTenant(), Subject: person.GetSubject(), Groups: person.GetGroups(),
		Role: want, Issuer: of.Mapping.GetName(), IssuerURL: of.Mapping.GetIssuer(), SHA256: authn.HashSecret(secret), CreatedByTenant: person.GetTenant(), CreatedBy: person.GetSubject(),
		ACR: person.GetAcr(),
	}
	if at := person.GetAuthTime(); at != nil {
		t.AuthTime = at.AsTime()
	}
	created, set, err := s.store.CreateSession(ctx, t, of.SignIn.Session)
	if err != nil {
		return nil, tokenStatus(err)
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	knowing, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	_, _ = s.awaitConfirmation(knowing, set.Version) // the error is ignored, because the session exists and the call must not time out
	authTime := "unknown"
	if !created.AuthTime.IsZero() {
		authTime = created.AuthTime.Format(time.RFC3339)
	}
	s.deps.Log.InfoContext(ctx, "a person has signed in", "token", created.Name, "issuer", created.Issuer, "tenant", created.Tenant, "subject", created.Subject, "role", enum.Name(created.Role), "expires", created.Expires, "auth_time", authTime, "acr", created.ACR)
	return &identityv1.CreateSessionResponse{Token: packToken(&created), Secret: secret, Roles: roles}, nil
}

// EndSession implements identityv1.SessionServiceServer.
func (s sessions) EndSession(ctx context.Context, _ *identityv1.EndSessionRequest) (*identityv1.EndSessionResponse, error) {
	own, err := s.ownToken(ctx)
	switch {
	case err != nil:
		return nil, err
	case own.GetIssuer() == "":
		return nil, &rpc.Error{Code: codes.FailedPrecondition, Reason: "NOT_A_SESSION", Err: errNotSession}
	}
	_, set, err := s.store.RevokeTokens(ctx, store.Revocation{Name: own.GetName(), OperatorTenant: own.GetTenant(), Operator: own.GetSubject()})
	if err != nil {
		return nil, tokenStatus(err)
	}
	if err := s.publish(set); err != nil {
		return nil, err
	}
	began := time.Now()
	unconfirmed, err := s.awaitConfirmation(ctx, set.Version)
	if err != nil {
		return nil, err
	}
	s.metrics.recordRevocation(ctx, time.Since(began))
	s.deps.Log.InfoContext(ctx, "a person has signed out", "token", own.GetName(), "tenant", own.GetTenant(), "subject", own.GetSubject())
	return &identityv1.EndSessionResponse{UnconfirmedReplicas: unconfirmed}, nil
}

// GetCaller implements identityv1.SessionServiceServer.
func (s sessions) GetCaller(ctx context.Context, _ *identityv1.GetCallerRequest) (*identityv1.GetCallerResponse, error) {
	own, err := s.ownToken(ctx)
	if err != nil {
		return nil, err
	}
	return &identityv1.GetCallerResponse{Token: own}, nil
}

// ownToken returns the token with which the caller has authenticated.
func (s sessions) ownToken(ctx context.Context) (*identityv1.Token, error) {
	published := s.tokens.published.Load()
	if published == nil {
		return nil, &rpc.Error{Code: codes.Unavailable, Reason: "TOKENS_UNKNOWN", Err: errNotImported}
	}
	for _, r := range published.GetTokens() {
		if r.GetToken().GetName() == authn.CallerOf(ctx).Person.GetTokenId() {
			return proto.CloneOf(r.GetToken()), nil
		}
	}
	return nil, &rpc.Error{Code: codes.Unauthenticated, Reason: "UNAUTHENTICATED", Err: errUnknownSelf}
}
