package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"golang.org/x/oauth2"
	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/seal"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

const (
	// attemptLife is how long a person may take to sign in at a server.
	attemptLife = 15 * time.Minute
	// startTimeout limits how long it may take to find the authorization server and to register a client.
	startTimeout = 25 * time.Second
	// maxAttempt is the maximum size, in bytes, of an attempt before it is encrypted.
	maxAttempt = 16<<10 - 64
	// minLife is the minimum lifetime of an access token. A shorter lifetime counts as unknown.
	minLife = 2 * time.Second
	// maxListed is the maximum number of people's connections in one response.
	maxListed = 200
	// attemptPurpose is the purpose (see [seal.Key.Seal]) with which attempts are encrypted.
	attemptPurpose = "attempt"
)

var (
	errServerUnknown  = errors.New("the configuration has no server of this name with `credentials`")
	errConnectTenant  = errors.New("only operators of the tenant \"default\" can connect or disconnect this account, because it belongs to no person")
	errOthersAccount  = errors.New("only operators can disconnect the account of another person")
	errDiffers        = errors.New("the request does not fit the configuration of the server: with `as: person` each request needs a person or must be for listing tools, and with `as: shared` a request must have neither; use the same configuration for all services")
	errManySignIns    = errors.New("you have started too many sign-ins at servers: try again in some minutes")
	errAttemptEnded   = errors.New("the sign-in at the server has to be started again: it took too long, it was finished or has failed before, another person has started it, or the configuration of the server has changed")
	errCodeRefused    = errors.New("the authorization server has refused the sign-in")
	errLoginRequired  = errors.New("there is no sign-in at the server")
	errRefreshPending = errors.New("another replica is refreshing the access token")
	errRefreshFailed  = errors.New("the access token could not be refreshed a short time ago")
	errClosing        = errors.New("this replica of the identity service is stopping")
	errClientRefused  = errors.New("the authorization server does not accept the client of the configuration: write its current secret into credentials.oauth.client_secret")
)

// connections implements identityv1.ConnectionServiceServer. It is safe for concurrent use.
type connections struct {
	identityv1.UnimplementedConnectionServiceServer
	*Service
}

type account struct {
	store.Key
	// forDiscovery is true if the account is used only to list the tools of a server at which each person uses their own
	// account.
	forDiscovery bool
}

// sealPurpose returns the purpose with which the grant of an account is encrypted. It differs between people, and
// between listing tools and calling them, so that a grant can't be used for another account.
func (a account) sealPurpose(generation int64) string {
	purpose := "grant/" + a.Server + "/" + strconv.FormatInt(generation, 10)
	switch {
	case a.Person != "":
		return purpose + "/person/" + a.Tenant + "/" + a.Person
	case a.forDiscovery:
		return purpose + "/discovery"
	default:
		return purpose
	}
}

// attempt is a sign-in at a server that a person has started. The mesh encrypts the attempt, and the program of the
// person stores it.
type attempt struct {
	// ID is random.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Tenant and Person identify the person who uses the account. Both are empty if the account belongs to no person.
	Tenant       string      `json:"tenant,omitzero"`
	Person       string      `json:"person,omitzero"`
	ForDiscovery bool        `json:"forDiscovery,omitzero"`
	Client       oauthClient `json:"client"`
	Redirect     string      `json:"redirect"`
	Verifier     string      `json:"verifier"`
	// Nonce is the parameter `nonce` (OpenID Connect Core, section 3.1.2.1), or "" if no ID token was requested.
	Nonce string `json:"nonce,omitzero"`
	// Operator identifies the token of the person who has started the sign-in.
	Operator string    `json:"operator"`
	Started  time.Time `json:"started"`
}

func (a *attempt) account() account {
	return account{store.Key{Server: a.Name, Tenant: a.Tenant, Person: a.Person}, a.ForDiscovery}
}

// grant is the content of [store.Connection.Sealed] before it is encrypted.
type grant struct {
	Client       oauthClient `json:"client"`
	AccessToken  string      `json:"accessToken"`
	RefreshToken string      `json:"refreshToken,omitzero"`
}

// serverNamed returns the configured server with the given name, if the mesh signs in at this server.
func (c connections) serverNamed(name string) (OAuthServer, error) {
	of, ok := c.tokens.identities().Servers[name]
	if !ok {
		return OAuthServer{}, fmt.Errorf("%q: %w", name, errServerUnknown)
	}
	return of, nil
}

// ownAccount returns the account at a server that the caller may connect. It is the caller's own account, or an account
// that belongs to no person.
func (c connections) ownAccount(ctx context.Context, name string, forDiscovery bool) (account, OAuthServer, error) {
	caller := authn.CallerOf(ctx)
	of, err := c.serverNamed(name)
	switch {
	case err != nil:
		return account{}, of, err
	case !of.ForEachPerson && forDiscovery:
		return account{}, of, errDiffers
	case of.ForEachPerson && !forDiscovery:
		return account{Key: store.Key{Server: name, Tenant: caller.Tenant(), Person: caller.Person.GetSubject()}}, of, nil
	case !caller.OperatesInstallation():
		return account{}, of, errConnectTenant
	default:
		return account{store.Key{Server: name}, forDiscovery}, of, nil
	}
}

// StartConnection implements identityv1.ConnectionServiceServer.
func (c connections) StartConnection(ctx context.Context, req *identityv1.StartConnectionRequest) (*identityv1.StartConnectionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	resp, err := c.start(ctx, req)
	if err != nil {
		c.deps.Log.WarnContext(ctx, "the sign-in at a server could not be started", "server", req.GetServer(), "tenant", authn.CallerOf(ctx).Tenant(), "subject", authn.CallerOf(ctx).Person.GetSubject(), "error", err)
		return nil, connectionStatus(err)
	}
	return resp, nil
}

func (c connections) start(ctx context.Context, req *identityv1.StartConnectionRequest) (*identityv1.StartConnectionResponse, error) {
	caller := authn.CallerOf(ctx)
	own, of, err := c.ownAccount(ctx, req.GetServer(), req.GetForDiscovery())
	switch {
	case err != nil:
		return nil, err
	case !c.starts.allow(principal.Of(caller.Person)):
		return nil, errManySignIns
	}
	if !isLoopbackRedirect(req.GetRedirectUri()) {
		return nil, fmt.Errorf("%w: the redirect URI is not http on 127.0.0.1 or ::1 (RFC 8252, section 7.3)", errCodeRefused)
	}
	requests, err := c.httpClient(&of)
	if err != nil {
		return nil, err
	}
	client, err := newOAuthClient(ctx, requests, of, req.GetRedirectUri())
	if err != nil {
		return nil, err
	}
	key, err := c.sealKey()
	if err != nil {
		return nil, err
	}
	begun := &attempt{
		ID: rand.Text(), Name: own.Server, Tenant: own.Tenant, Person: own.Person, ForDiscovery: own.forDiscovery, Client: *client, Redirect: req.GetRedirectUri(),
		Verifier: oauth2.GenerateVerifier(), Operator: caller.Person.GetTokenId(), Started: time.Now(),
	}
	if client.requestsIDToken() {
		begun.Nonce = rand.Text()
	}
	state := rand.Text()
	raw, err := json.Marshal(begun)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxAttempt {
		return nil, fmt.Errorf("%w: the metadata of its authorization server contains values that are too long", errServerUnusable)
	}
	return &identityv1.StartConnectionResponse{
		AuthorizationUrl: begun.authorizationURL(state, of.prompt(client)), State: state, Issuer: client.Issuer,
		SendsIssuer: client.SendsIssuer, Attempt: key.Seal(raw, attemptPurpose),
	}, nil
}

// openAttempt decrypts an attempt. It returns errAttemptEnded if the attempt can no longer be finished.
func (c connections) openAttempt(ctx context.Context, sealed []byte) (*attempt, error) {
	var opened attempt
	key, err := c.sealKey()
	if err == nil {
		sealed, err = key.Open(sealed, attemptPurpose)
	}
	if err != nil || json.Unmarshal(sealed, &opened) != nil {
		return nil, errAttemptEnded
	}
	own, of, err := c.ownAccount(ctx, opened.Name, opened.ForDiscovery)
	if err != nil {
		return nil, err
	}
	isOurs := own == opened.account() && opened.Operator == authn.CallerOf(ctx).Person.GetTokenId() && time.Since(opened.Started) <= attemptLife
	if !isOurs || of.URL != opened.Client.Server || of.update(&opened.Client) != nil {
		return nil, errAttemptEnded
	}
	return &opened, nil
}

// FinishConnection implements identityv1.ConnectionServiceServer.
func (c connections) FinishConnection(ctx context.Context, req *identityv1.FinishConnectionRequest) (*identityv1.FinishConnectionResponse, error) {
	caller := authn.CallerOf(ctx)
	begun, err := c.openAttempt(ctx, req.GetAttempt())
	if err == nil {
		err = c.starts.beginExchange(principal.Of(caller.Person), begun)
	}
	if err != nil {
		return nil, connectionStatus(err)
	}
	answer, err := c.exchange(ctx, begun, req.GetCode())
	if err != nil {
		c.deps.Log.WarnContext(ctx, "the sign-in at a server has failed", "server", begun.Name, "tenant", caller.Tenant(), "subject", caller.Person.GetSubject(), "error", err)
		return nil, connectionStatus(err)
	}
	c.starts.end(principal.Of(caller.Person), begun)
	name, err := begun.accountName(answer, time.Now())
	if err != nil {
		c.deps.Log.InfoContext(ctx, "the ID token of a sign-in at a server can't be used, so people do not see the name of the account", "server", begun.Name, "issuer", begun.Client.Issuer, "error", err)
	}
	granted := grant{Client: begun.Client, AccessToken: answer.AccessToken, RefreshToken: answer.RefreshToken}
	stored, err := c.store.Connect(ctx, store.Connection{
		Key: begun.account().Key, Issuer: begun.Client.Issuer, Scopes: grantedScopes(answer, &begun.Client), HasRefreshToken: answer.RefreshToken != "", AccountName: name,
		ConnectedByTenant: caller.Tenant(), ConnectedBy: caller.Person.GetSubject(), Expires: answer.Expiry,
	}, c.sealerOf(begun.account(), &granted))
	if err != nil {
		return nil, connectionStatus(err)
	}
	c.deps.Log.InfoContext(ctx, "a person has connected a server", "server", begun.Name, "issuer", begun.Client.Issuer, "account", accountKind(begun.account()), "account_name", name, "tenant", caller.Tenant(), "subject", caller.Person.GetSubject(), "expires", stored.Expires)
	return &identityv1.FinishConnectionResponse{Connection: packConnection(begun.account(), &stored)}, nil
}

// accountKind returns a text for the log that says who uses an account.
func accountKind(of account) string {
	switch {
	case of.Person != "":
		return "person"
	case of.forDiscovery:
		return "discovery"
	default:
		return "shared"
	}
}

// exchange exchanges the authorization code of an attempt for tokens.
func (c connections) exchange(ctx context.Context, begun *attempt, code string) (*oauth2.Token, error) {
	ctx, end, err := c.oauthContext(ctx, begun.Name)
	if err != nil {
		return nil, err
	}
	defer end()
	answer, err := begun.Client.config(begun.Redirect).Exchange(ctx, code, append(begun.Client.resourceOption(), oauth2.VerifierOption(begun.Verifier))...)
	if err != nil {
		return nil, tokenEndpointError(err, errCodeRefused)
	}
	return answer, checkTokenAnswer(answer)
}

// oauthContext returns a context for requests to the token endpoint of a server's authorization server. The caller must
// call the returned function after its last request.
func (c connections) oauthContext(ctx context.Context, name string) (context.Context, func(), error) {
	of, err := c.serverNamed(name)
	if err != nil {
		return nil, nil, err
	}
	client, err := c.httpClient(&of)
	if err != nil {
		return nil, nil, err
	}
	return context.WithValue(ctx, oauth2.HTTPClient, client), client.CloseIdleConnections, nil
}

// httpClient returns a client for requests to a server and to its authorization server. It uses [Deps.Transport] if
// there is one.
func (c connections) httpClient(of *OAuthServer) (*http.Client, error) {
	client, err := of.httpClient()
	if err == nil && c.deps.Transport != nil {
		client.Transport = c.deps.Transport
	}
	return client, err
}

// checkTokenAnswer refuses tokens that the gateway can't send. An expiry that is less than minLife away counts as
// unknown, because each call would otherwise cause a refresh.
func checkTokenAnswer(answer *oauth2.Token) error {
	const most = 16 << 10
	if time.Until(answer.Expiry) < minLife {
		answer.Expiry = time.Time{}
	}
	switch {
	case !strings.EqualFold(answer.Type(), "bearer"):
		return fmt.Errorf("%w: the authorization server has issued a token whose type is not Bearer", errServerUnusable)
	case len(answer.AccessToken) > most || len(answer.RefreshToken) > most:
		return fmt.Errorf("%w: the authorization server has issued a token of more than %d bytes", errServerUnusable, most)
	case strings.ContainsFunc(answer.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("%w: the access token contains characters that are not allowed in a header", errServerUnusable)
	default:
		return nil
	}
}

// tokenEndpointError converts an error of a token endpoint (RFC 6749, section 5.2). If the authorization server has
// refused the request, the result wraps refused.
func tokenEndpointError(err, refused error) error {
	answer, ok := errors.AsType[*oauth2.RetrieveError](err)
	switch {
	case !ok:
		return fmt.Errorf("%w: %w", errServerAway, err)
	case answer.ErrorCode == "" || slices.Contains([]string{"server_error", "temporarily_unavailable", "slow_down"}, answer.ErrorCode),
		answer.Response.StatusCode >= http.StatusInternalServerError || answer.Response.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%w: the token endpoint has answered %s", errServerAway, answer.Response.Status)
	default:
		// The description is not shown, because it can contain the refused token. The code is shortened, because the
		// authorization server chooses it.
		return fmt.Errorf("%w: the token endpoint has answered %q", refused, shorten(withoutControls(answer.ErrorCode)))
	}
}

// grantedScopes returns the scopes in a token response, separated by spaces. If the response contains no scopes, the
// requested scopes are granted (RFC 6749, section 5.1).
func grantedScopes(answer *oauth2.Token, client *oauthClient) string {
	if text, ok := answer.Extra("scope").(string); ok && text != "" {
		return strings.ToValidUTF8(withoutControls(text[:min(len(text), maxAskedScopes)]), "")
	}
	return strings.Join(client.Scopes, " ")
}

// withoutControls replaces control characters with spaces, because PostgreSQL can't store NUL.
func withoutControls(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// sealerOf returns a function that encrypts a grant for an account and a generation.
func (c connections) sealerOf(of account, granted *grant) store.Sealer {
	raw, err1 := json.Marshal(granted)
	key, err2 := c.sealKey()
	if err := errors.Join(err1, err2); err != nil {
		return func(int64) ([]byte, error) { return nil, err }
	}
	return func(generation int64) ([]byte, error) { return key.Seal(raw, of.sealPurpose(generation)), nil }
}

// openGrant decrypts the grant in a connection.
func (c connections) openGrant(at account, of *store.Connection) (*grant, error) {
	key, err := c.sealKey()
	if err != nil {
		return nil, err
	}
	raw, err := key.Open(of.Sealed, at.sealPurpose(of.Generation))
	if err != nil {
		return nil, err
	}
	granted := new(grant)
	return granted, json.Unmarshal(raw, granted)
}

// connectionStatus adds a gRPC code and a reason to an error about a connection.
func connectionStatus(err error) error {
	for _, known := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{errServerUnknown, codes.NotFound, "SERVER_UNKNOWN"},
		{store.ErrConnectionUnknown, codes.NotFound, "CONNECTION_UNKNOWN"},
		{errConnectTenant, codes.PermissionDenied, "TENANT_REFUSED"},
		{errOthersAccount, codes.PermissionDenied, "TENANT_REFUSED"},
		{errIsBlocked, codes.PermissionDenied, "CALLER_BLOCKED"},
		{errDiffers, codes.FailedPrecondition, "CREDENTIALS_DIFFER"},
		{errManySignIns, codes.ResourceExhausted, "TOO_MANY_SIGN_INS"},
		{store.ErrTooManyConnections, codes.ResourceExhausted, "TOO_MANY_CONNECTIONS"},
		{errNotImported, codes.Unavailable, "TOKENS_UNKNOWN"},
		{errPageToken, codes.InvalidArgument, "INVALID_REQUEST"},
		{errAttemptEnded, codes.FailedPrecondition, "CONNECTION_ATTEMPT_ENDED"},
		{errCodeRefused, codes.FailedPrecondition, "AUTHORIZATION_REFUSED"},
		{errLoginRequired, codes.FailedPrecondition, "LOGIN_REQUIRED"},
		{errServerUnusable, codes.FailedPrecondition, "AUTHORIZATION_SERVER_UNUSABLE"},
		{errServerAway, codes.Unavailable, "AUTHORIZATION_SERVER_UNAVAILABLE"},
		{errClientRefused, codes.Unavailable, "AUTHORIZATION_SERVER_UNAVAILABLE"},
		{errRefreshFailed, codes.Unavailable, "AUTHORIZATION_SERVER_UNAVAILABLE"},
		{errRefreshPending, codes.Unavailable, "AUTHORIZATION_SERVER_UNAVAILABLE"},
		{errClosing, codes.Unavailable, "AUTHORIZATION_SERVER_UNAVAILABLE"},
		{seal.ErrOpen, codes.FailedPrecondition, "LOGIN_REQUIRED"},
	} {
		if errors.Is(err, known.err) {
			return &rpc.Error{Code: known.code, Reason: known.reason, Err: err}
		}
	}
	return &rpc.Error{Code: codes.Unavailable, Reason: "CATALOGUE_STORE_AWAY", Err: fmt.Errorf("the connection could not be read or changed: %w: %w", sqlstore.ErrUnavailable, err)}
}
