package identity

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/oauth2"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// deviceGrant is the grant type of the device flow (RFC 8628, section 3.4).
	deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"
	// tokenTimeout limits how long a request to a token endpoint takes. It is less than 5 s, which is the limit for a call
	// without a credential.
	tokenTimeout = 4 * time.Second
	// maxIDTokenLife is the maximum time between the claims `iat` and `exp` of an ID token.
	maxIDTokenLife = 24 * time.Hour
	// maxReason is the maximum length, in bytes, of text from an issuer in an error.
	maxReason = 256
)

var (
	errSignInUnknown = errors.New("people can't sign in at an issuer of this name: ask an operator to set `sign_in` and `people` of the issuer (auth.issuers)")
	// errNoAnswer means that an issuer has not answered, or that its response violates OAuth.
	errNoAnswer = errors.New("the issuer can't be reached, or its answer can't be used: the log of the identity service contains the reason")
	// errMisconfigured means that an issuer does not respond as the configuration expects.
	errMisconfigured = errors.New("`sign_in` of the issuer does not fit the issuer (auth.issuers)")
	// errRefused means that an issuer has refused a code, or that its ID token is not valid.
	errRefused = errors.New("the sign-in is refused")
	// errPending and errSlowDown mean that a person has not finished the device flow. errSlowDown also means that the
	// client sends requests too often.
	errPending  = errors.New("the person has not finished the sign-in")
	errSlowDown = errors.New("the person has not finished the sign-in: ask less often")
	errNoDevice = errors.New("people can't sign in at this issuer on another device: if the issuer supports this, ask an operator to set `sign_in.device`")
)

// detailedError is an error with a detail that is written only to the log.
type detailedError struct {
	error
	detail string
}

func (e detailedError) Error() string { return e.error.Error() + " (" + e.detail + ")" }

func (e detailedError) Unwrap() error { return e.error }

// oauth returns the OAuth client of an issuer, and a context in which requests use the issuer's certificate
// authorities. The caller must call the returned function after its last request.
func (s *Service) oauth(ctx context.Context, of *Issuer) (context.Context, *oauth2.Config, func(), error) {
	metadata, err := s.metadata.get(ctx, of.source)
	if err != nil {
		return nil, nil, nil, detailedError{errNoAnswer, err.Error()}
	}
	if metadata.TokenEndpoint == "" {
		return nil, nil, nil, fmt.Errorf("%w: its metadata has no token_endpoint", errMisconfigured)
	}
	client, err := issuerkeys.NewClient(of.source.CA)
	if err != nil {
		return nil, nil, nil, err
	}
	client.Timeout = tokenTimeout
	style := oauth2.AuthStyleInParams
	if of.SignIn.ClientSecret != "" && metadata.UsesBasicAuth() {
		style = oauth2.AuthStyleInHeader
	}
	config := &oauth2.Config{
		ClientID: of.SignIn.ClientID, ClientSecret: of.SignIn.ClientSecret, Scopes: of.SignIn.Scopes,
		Endpoint: oauth2.Endpoint{TokenURL: metadata.TokenEndpoint, AuthStyle: style},
	}
	if of.SignIn.Device {
		config.Endpoint.DeviceAuthURL = metadata.DeviceEndpoint
	}
	return context.WithValue(ctx, oauth2.HTTPClient, client), config, client.CloseIdleConnections, nil
}

func (s *Service) exchangeCode(ctx context.Context, of *Issuer, code *identityv1.AuthorizationCode) (idToken string, err error) {
	if !isLoopbackRedirect(code.GetRedirectUri()) {
		return "", fmt.Errorf("%w: the redirect URI is not http on 127.0.0.1 or ::1 (RFC 8252, section 7.3)", errRefused)
	}
	ctx, config, end, err := s.oauth(ctx, of)
	if err != nil {
		return "", err
	}
	defer end()
	config.RedirectURL = code.GetRedirectUri()
	return idTokenOf(config.Exchange(ctx, code.GetCode(), oauth2.VerifierOption(code.GetCodeVerifier())))
}

// isLoopbackRedirect reports whether a redirect stays on the person's machine, because its URI has the scheme http and
// a loopback address.
func isLoopbackRedirect(text string) bool {
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "http" || at.User != nil || at.Fragment != "" {
		return false
	}
	ip := net.ParseIP(at.Hostname())
	return ip != nil && ip.IsLoopback()
}

// exchangeDevice requests the ID token of the device flow. It does not wait for the person to sign in.
func (s *Service) exchangeDevice(ctx context.Context, of *Issuer, code string) (idToken string, err error) {
	ctx, config, end, err := s.oauth(ctx, of)
	if err != nil {
		return "", err
	}
	defer end()
	if config.Endpoint.DeviceAuthURL == "" {
		return "", errNoDevice
	}
	// The empty code is sent as a parameter without a value, which counts as omitted (RFC 6749, section 3.2).
	return idTokenOf(config.Exchange(ctx, "", oauth2.SetAuthURLParam("grant_type", deviceGrant), oauth2.SetAuthURLParam("device_code", code)))
}

// idTokenOf returns the ID token in a response from a token endpoint.
func idTokenOf(answer *oauth2.Token, err error) (string, error) {
	if err != nil {
		return "", oauthError(err)
	}
	idToken, _ := answer.Extra("id_token").(string)
	if idToken == "" {
		return "", fmt.Errorf("%w: the issuer has sent no ID token; the client must be allowed the scope openid", errMisconfigured)
	}
	return idToken, nil
}

// oauthError converts an error from a token endpoint (RFC 6749, section 5.2; RFC 8628, section 3.5). Callers without a
// credential receive the result, so it contains no text from the issuer except the error code.
func oauthError(err error) error {
	answer, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok || answer.ErrorCode == "" {
		return detailedError{errNoAnswer, shorten(err.Error())}
	}
	detail := shorten(answer.ErrorCode + " " + answer.ErrorDescription)
	switch answer.ErrorCode {
	case "authorization_pending":
		return errPending
	case "slow_down":
		return errSlowDown
	case "server_error", "temporarily_unavailable":
		return detailedError{errNoAnswer, detail}
	case "expired_token":
		return fmt.Errorf("%w: the code has expired; sign in again", errRefused)
	case "access_denied":
		return fmt.Errorf("%w by the person or the issuer", errRefused)
	case "invalid_grant":
		return detailedError{fmt.Errorf("%w: the issuer does not accept the code; sign in again", errRefused), detail}
	default: // such as invalid_client
		return detailedError{fmt.Errorf("%w: the issuer has answered %q", errMisconfigured, shorten(answer.ErrorCode)), detail}
	}
}

// shorten returns the beginning of a text from an issuer, as valid UTF-8.
func shorten(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxReason)], "") }

// verifyIDToken verifies an ID token (OpenID Connect Core, section 3.1.3.7) and maps its claims. nonce is the nonce of
// the sign-in. It is empty if the flow has no nonce. The person's agents have the principal's subject as their owner. A
// token with the claim `act` is refused, because an actor may not sign in as the person that it represents.
func (s *Service) verifyIDToken(ctx context.Context, of *Issuer, token, nonce string) (*identityv1.Principal, error) {
	mapping := proto.CloneOf(of.Mapping)
	mapping.Resource, mapping.Audiences, mapping.MaxLife = "", []string{of.SignIn.ClientID}, durationpb.New(maxIDTokenLife)
	mapping.AgentClaim, mapping.Agents, mapping.AgentNamedByClaim, mapping.Delegation = "", nil, false, false
	mapping.Subject, mapping.Owner = cmp.Or(mapping.GetOwner(), mapping.GetSubject()), ""
	metadata, err := s.metadata.get(ctx, of.source)
	if err != nil {
		return nil, detailedError{errNoAnswer, err.Error()}
	}
	if metadata.IsPairwise() && strings.Contains(mapping.GetSubject(), "{/sub}") {
		return nil, fmt.Errorf("%w: the claim sub of a person differs between clients of the issuer, so the mesh can't know that the person owns an agent; use another claim for subject and owner, such as {/oid}", errMisconfigured)
	}
	end, err := s.limits.beginVerification(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	mapping.Keys = s.tokens.keys.Status(of.source).Keys
	person, err := verifyWith(mapping, token)
	if refusal := issuer.RefusalOf(err); refusal != nil && (refusal.Reason == issuer.UnknownKey || refusal.Reason == issuer.NoKeys) {
		mapping.Keys = s.tokens.keys.Refetch(ctx, of.source)
		person, err = verifyWith(mapping, token)
	}
	if err == nil {
		err = checkIDToken(token, of.SignIn.ClientID, nonce)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	return person, nil
}

// checkIDToken checks the parts of an ID token that other JWTs do not have. The syntax of the token was checked before.
func checkIDToken(token, clientID, nonce string) error {
	var header struct {
		Type string `json:"typ"`
	}
	var claims struct {
		Audience any    `json:"aud"`
		Nonce    string `json:"nonce"`
		Party    string `json:"azp"`
	}
	parts := strings.Split(token, ".")
	if err := errors.Join(decodePart(parts[0], &header), decodePart(parts[1], &claims)); err != nil {
		return err
	}
	audiences, isList := claims.Audience.([]any)
	switch {
	case strings.Contains(strings.ToLower(header.Type), "at+jwt"):
		return errors.New("the token is an access token, not an ID token")
	case claims.Party != clientID && (claims.Party != "" || isList && len(audiences) > 1):
		return errors.New("the ID token was issued to another client (azp)")
	case nonce != "" && claims.Nonce != nonce:
		return errors.New("the ID token belongs to another sign-in (nonce)")
	}
	return nil
}

// verifyWith verifies a JWT with the keys of one issuer.
func verifyWith(of *identityv1.Issuer, token string) (*identityv1.Principal, error) {
	set, err := issuer.NewSet([]*identityv1.Issuer{of})
	if err != nil {
		return nil, err
	}
	found, refusal := set.Verify(token, time.Now())
	if refusal != nil {
		return nil, refusal
	}
	return found.Principal, nil
}

// decodePart decodes a part of a JWT. The syntax of the JWT was checked before.
func decodePart(part string, into any) error {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// signInStatus adds a gRPC code and a reason to an error about a sign-in. It omits the details of a [detailedError],
// which are only for the log.
func signInStatus(err error) error {
	public := err
	if detailed, ok := errors.AsType[detailedError](err); ok {
		public = detailed.error
	}
	for _, known := range []struct {
		err    error
		code   codes.Code
		reason string
	}{
		{errSignInUnknown, codes.NotFound, "SIGN_IN_UNKNOWN"},
		{errPending, codes.FailedPrecondition, "SIGN_IN_PENDING"},
		{errSlowDown, codes.FailedPrecondition, "SIGN_IN_SLOW_DOWN"},
		{errNoDevice, codes.FailedPrecondition, "DEVICE_FLOW_UNSUPPORTED"},
		{errMisconfigured, codes.FailedPrecondition, "SIGN_IN_MISCONFIGURED"},
		{errRefused, codes.PermissionDenied, "SIGN_IN_REFUSED"},
		{errIsBlocked, codes.PermissionDenied, "CALLER_BLOCKED"},
		{errRoleRefused, codes.PermissionDenied, "ROLE_REFUSED"},
		{errNoAnswer, codes.Unavailable, "ISSUER_UNAVAILABLE"},
		{errBusy, codes.ResourceExhausted, "SIGN_IN_BUSY"},
	} {
		if errors.Is(err, known.err) {
			return &rpc.Error{Code: known.code, Reason: known.reason, Err: public}
		}
	}
	return err
}
