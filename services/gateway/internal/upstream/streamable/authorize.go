package streamable

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpclient"
	"github.com/sluice-mesh/sluice/services/internal/redact"
)

// headerAuthorization is the header with the access token (RFC 6750, section 2.1).
const headerAuthorization = "Authorization"

// maxOldTokens is the maximum number of replaced access tokens that are still redacted. Late answers may contain such
// tokens.
const maxOldTokens = 2

// secrets contains the values that are redacted in a server's answers. It is immutable.
type secrets struct {
	// configured are the secrets in the configuration, and tokens are the last access tokens, newest first.
	configured, tokens []string
	// clean redacts all these values in answers. address redacts them in the parts of a redirect address that are shown.
	clean, address *redact.Redactor
}

func newSecrets(configured, tokens []string) *secrets {
	all := slices.Concat(configured, tokens)
	return &secrets{configured: configured, tokens: tokens, clean: redact.New(nil, all), address: redact.NewForAllForms(all)}
}

// hide adds an access token to the values that are redacted in answers.
func (s *Transport) hide(token string) {
	for {
		now := s.secrets.Load()
		if slices.Contains(now.tokens, token) {
			return
		}
		tokens := append([]string{token}, now.tokens[:min(len(now.tokens), maxOldTokens)]...)
		if s.secrets.CompareAndSwap(now, newSecrets(now.configured, tokens)) {
			return
		}
	}
}

// send sends a request, with an access token if the server requires OAuth. If the server refuses the token, the server
// has not executed the request. In this case, send replaces the token and sends the request once more, unless once is
// true. The first attempt counts as sent, even if the second one fails. If signedIn is not nil, send uses only tokens
// of this connection. The other parameters are those of [httpclient.Client.SendWhen].
func (s *Transport) send(ctx context.Context, signedIn *accesstoken.Connection, once bool, begin func() error, head *httpclient.Head, fields []httpclient.Field, body []byte) (*http.Response, error) {
	if s.tokens == nil {
		return s.client.SendWhen(ctx, begin, head, fields, body)
	}
	token, err := s.token(ctx, signedIn)
	if err != nil {
		return nil, notSentError{err}
	}
	resp, err := s.sendWith(ctx, token, begin, head, fields, body)
	if err != nil || once || !refusesToken(resp) {
		return resp, err
	}
	next, isNew, err := s.tokens.Replace(ctx, token)
	if err != nil || !isNew {
		return resp, nil //nolint:nilerr // the server's answer contains more information than err
	}
	if signedIn != nil && !next.IsOf(signedIn) {
		return resp, nil // the next request finds out that the session has ended
	}
	closeBody(resp)
	resp, err = s.sendWith(ctx, next, begin, head, fields, body)
	switch {
	case errors.Is(err, httpclient.ErrNeverSent): // bytes of the first attempt were sent
		err = fmt.Errorf("after %s had refused an access token: %s", s.name, err) //nolint:errorlint // the class of err applies only to the second attempt
	case err == nil && refusesToken(resp):
		s.tokens.Report(ctx, next)
	}
	return resp, err
}

// token returns an access token of the given connection, or the newest one if signedIn is nil.
func (s *Transport) token(ctx context.Context, signedIn *accesstoken.Connection) (accesstoken.Token, error) {
	if signedIn == nil {
		return s.tokens.Token(ctx)
	}
	return signedIn.Token(ctx)
}

// connection returns the connection whose access tokens a new session uses. It is nil if the server does not require
// OAuth.
func (s *Transport) connection(ctx context.Context) (*accesstoken.Connection, error) {
	if s.tokens == nil {
		return nil, nil //nolint:nilnil // a nil connection is valid
	}
	signedIn, err := s.tokens.Connection(ctx)
	if err != nil {
		return nil, s.neverSent(notSentError{err})
	}
	return signedIn, nil
}

// sendLast sends the request that ends a session. This request has no body. If there is no valid access token any more,
// the request contains the last access token, because the server would otherwise keep the session.
func (s *Transport) sendLast(ctx context.Context, signedIn *accesstoken.Connection, head *httpclient.Head, fields []httpclient.Field) (*http.Response, error) {
	if s.tokens == nil || signedIn == nil {
		return s.send(ctx, nil, true, nil, head, fields, nil)
	}
	token, err := signedIn.Token(ctx)
	if err != nil {
		token = signedIn.Last()
	}
	return s.sendWith(ctx, token, nil, head, fields, nil)
}

// sendWith sends a request with an access token.
func (s *Transport) sendWith(ctx context.Context, token accesstoken.Token, begin func() error, head *httpclient.Head, fields []httpclient.Field, body []byte) (*http.Response, error) {
	s.hide(token.Text)
	resp, err := s.client.SendWhen(ctx, begin, head, append(fields, bearer(token.Text)), body)
	if err == nil && resp.StatusCode < http.StatusBadRequest {
		s.tokens.Accept(token)
	}
	return resp, err
}

// refusesToken reports whether a server has refused an access token without executing the request (RFC 6750, section
// 3.1). A tool may forward the status 401 of another service, but then there is no such challenge.
func refusesToken(resp *http.Response) bool {
	return resp.StatusCode == http.StatusUnauthorized && hasChallenge(resp, "", "invalid_token")
}

// hasChallenge reports whether a response has a challenge for bearer tokens whose parameter `error` has one of the
// given values. If the parameter is absent, its value counts as "".
func hasChallenge(resp *http.Response, codes ...string) bool {
	for _, challenge := range resp.Header.Values("WWW-Authenticate") {
		if scheme, _, _ := strings.Cut(strings.TrimSpace(challenge), " "); !strings.EqualFold(scheme, "bearer") {
			continue
		}
		code := ""
		if found := challengeError.FindStringSubmatch(challenge); found != nil {
			code = found[1]
		}
		if slices.Contains(codes, code) {
			return true
		}
	}
	return false
}

// requiredScopes reports whether a server refuses an access token because of missing scopes (RFC 6750, section 3.1). It
// returns the names of these scopes, in a form that may be shown. It omits names of more than 64 bytes and names with
// unusual characters, because they could be instructions for a model. It returns at most maxScopes names.
func requiredScopes(resp *http.Response) (scopes string, lacksScopes bool) {
	if !hasChallenge(resp, "insufficient_scope") {
		return "", false
	}
	var shown []string
	for _, challenge := range resp.Header.Values("WWW-Authenticate") {
		found := challengeScope.FindStringSubmatch(challenge)
		if found == nil {
			continue
		}
		for scope := range strings.FieldsSeq(found[1]) {
			if shownScope.MatchString(scope) && len(shown) < maxScopes {
				shown = append(shown, scope)
			}
		}
	}
	return strings.Join(shown, " "), true
}

// maxScopes is the maximum number of scopes that an error shows.
const maxScopes = 8

// challengeError and challengeScope match the parameters `error` and `scope` of a challenge. shownScope matches the
// scopes that errors may show.
var (
	challengeError = regexp.MustCompile(`(?i)[ ,]error="?([a-z_]+)`)
	challengeScope = regexp.MustCompile(`(?i)[ ,]scope="([^"]*)"`)
	shownScope     = regexp.MustCompile(`^[A-Za-z0-9._:/+-]{1,64}$`)
)

func bearer(token string) httpclient.Field {
	return httpclient.Field{Name: headerAuthorization, Value: "Bearer " + token}
}

// notSentError is the error of a request for which there is no access token.
type notSentError struct{ error }

// Unwrap returns [httpclient.ErrNeverSent] and the reason why there is no token.
func (e notSentError) Unwrap() []error { return []error{httpclient.ErrNeverSent, e.error} }
