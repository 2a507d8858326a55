// Package accesstoken gets the access tokens with which the gateway calls servers that require OAuth. The identity
// service stores and refreshes the tokens. The gateway stores the tokens only in memory.
package accesstoken

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// useBefore is the remaining lifetime at which the gateway stops using a token. If the token is valid for less than
	// four times this duration when the gateway receives it, the gateway stops using it when a quarter of that lifetime is
	// left.
	useBefore = 20 * time.Second
	// maxAge is how long a token is used before the gateway requests the current token again. An operator may have deleted
	// or replaced the connection.
	maxAge = 30 * time.Second
	// askTimeout is the timeout of a request to the identity service. The identity service may have to refresh the token
	// first.
	askTimeout = 45 * time.Second
	// failurePause is the minimum time between a failed request for a token and the next request.
	failurePause = time.Second
	// replacePause is the minimum time between two requests for a replacement of the same refused token. Without this
	// pause, a server that refuses every token would cause one request to the identity service for each call.
	replacePause = 10 * time.Second
)

// Token is an access token.
type Token struct {
	// Text is the token that is sent in the header `Authorization: Bearer TEXT`.
	Text       string
	generation int64
	// useUntil is the time after which the gateway asks for another token.
	useUntil   time.Time
	connection *Connection
}

// IsOf reports whether the token was issued for a connection.
func (t Token) IsOf(c *Connection) bool { return t.connection == c }

// Source returns the access tokens of one account at one server. It is safe for concurrent use.
type Source struct {
	client      identityv1.ConnectionServiceClient
	server, url string
	account     Account
	requests    singleflight.Group

	mu sync.Mutex
	// last is the newest token, and current is its connection. Both are zero if there is no token.
	last    Token
	current *Connection
	// failed is the time of the last error.
	failed time.Time
	err    error
	// unreplaced is the generation of the last refused token that could not be replaced. asked is the time at which the
	// gateway last requested a replacement for it.
	unreplaced int64
	asked      time.Time
	// accepted is the generation of the token that the server accepted last. It is 0 if no token was accepted yet, or if
	// this token was refused later.
	accepted atomic.Int64
}

// Account identifies the account that a [Source] uses. The zero value is the account that all callers share.
type Account struct {
	// Person is the person to whom the account belongs. The tokens must not be used for any other person. Person is the
	// zero key if the account belongs to no person.
	Person principal.Key
	// ForDiscovery is true if the account is used only to list the tools of a server at which each person uses a separate
	// account.
	ForDiscovery bool
}

// New returns a source of access tokens for an account at a configured server. The tokens are valid only for requests
// to the given URL.
func New(client identityv1.ConnectionServiceClient, server, url string, account Account) *Source {
	return &Source{client: client, server: server, url: url, account: account}
}

// request returns a request for a token. refused is the generation of a refused token, or 0.
func (s *Source) request(refused int64) *identityv1.GetAccessTokenRequest {
	req := &identityv1.GetAccessTokenRequest{
		Server: s.server, Url: s.url, RefusedGeneration: refused, AcceptedGeneration: s.accepted.Load(), ForDiscovery: s.account.ForDiscovery,
	}
	if person := s.account.Person; person != (principal.Key{}) {
		req.Person = &identityv1.Person{Tenant: person.Tenant, Subject: person.Subject}
	}
	return req
}

// Token returns an access token that has not expired. The error wraps an [upstream.CauseError].
func (s *Source) Token(ctx context.Context) (Token, error) {
	s.mu.Lock()
	last, now := s.last, time.Now()
	isUsable := last.Text != "" && now.Before(last.useUntil)
	failed := s.err
	if now.Sub(s.failed) >= failurePause {
		failed = nil
	}
	s.mu.Unlock()
	switch {
	case isUsable:
		return last, nil
	case failed != nil:
		return Token{}, failed
	}
	return s.askOnce(ctx, 0)
}

// Replace returns a token that replaces a token that the server has refused. isNew is false if there is no other token.
func (s *Source) Replace(ctx context.Context, refused Token) (next Token, isNew bool, err error) {
	s.accepted.CompareAndSwap(refused.generation, 0)
	s.mu.Lock()
	last, now := s.last, time.Now()
	s.mu.Unlock()
	switch {
	case last.Text != "" && last.generation != refused.generation && now.Before(last.useUntil): // another request has replaced the token
		return last, true, nil
	case s.isAsked(refused):
		return refused, false, nil
	}
	next, err = s.askOnce(ctx, refused.generation)
	return next, err == nil && next.generation != refused.generation, err
}

// Report tells the identity service that the server has refused a token that had just replaced another token. It does
// not wait for the response.
func (s *Source) Report(ctx context.Context, refused Token) {
	s.accepted.CompareAndSwap(refused.generation, 0)
	if !s.isAsked(refused) {
		s.begin(ctx, refused.generation)
	}
}

// Accept records that the server has accepted a token. The next request for a token reports this to the identity
// service.
func (s *Source) Accept(token Token) { s.accepted.Store(token.generation) }

// isAsked reports whether the gateway requested a replacement for the refused token less than replacePause ago and
// received none.
func (s *Source) isAsked(refused Token) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unreplaced == refused.generation && time.Since(s.asked) < replacePause
}

// askOnce gets a token from the identity service. Concurrent calls share one request.
func (s *Source) askOnce(ctx context.Context, refused int64) (Token, error) {
	select {
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	case answer := <-s.begin(ctx, refused):
		token, _ := answer.Val.(Token)
		return token, answer.Err
	}
}

// begin starts a request to the identity service, or joins a request that is in progress. The request continues even if
// its callers are cancelled.
func (s *Source) begin(ctx context.Context, refused int64) <-chan singleflight.Result {
	return s.requests.DoChan(strconv.FormatInt(refused, 10), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return s.ask(ctx, refused)
	})
}

// ask requests a token from the identity service. refused is the generation of a refused token, or 0.
func (s *Source) ask(ctx context.Context, refused int64) (Token, error) {
	resp, err := s.client.GetAccessToken(ctx, s.request(refused))
	if err == nil {
		err = s.checkEcho(resp)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		ends := isFinal(err)
		err = s.cause(err)
		if ends {
			s.endConnection(err)
		}
		if refused == 0 || ends { // otherwise other requests can still use the last token
			s.err, s.failed, s.last = err, now, Token{}
		}
		s.remember(refused, now)
		return Token{}, err
	}
	if resp.GetGeneration() < s.last.generation && now.Before(s.last.useUntil) { // another answer was faster
		return s.last, nil
	}
	next := Token{Text: resp.GetAccessToken(), generation: resp.GetGeneration(), useUntil: now.Add(maxAge)}
	if left, ok := timeLeft(resp, now); ok {
		next.useUntil = now.Add(min(maxAge, left-min(useBefore, left/4)))
	}
	if next.generation == refused {
		s.remember(refused, now)
	}
	next.connection = s.connectionOf(resp)
	next.connection.last.Store(&next)
	s.last, s.err = next, nil
	return next, nil
}

// checkEcho returns an error if the token in a response is not that of the source's account. An identity service of an
// older version ignores the person in the request, and returns the token of an account that all callers share.
func (s *Source) checkEcho(resp *identityv1.GetAccessTokenResponse) error {
	got := Account{ForDiscovery: resp.GetForDiscovery()}
	if person := resp.GetPerson(); person != nil {
		got.Person = principal.Key{Tenant: person.GetTenant(), Subject: person.GetSubject()}
	}
	if got != s.account {
		return errOtherAccount
	}
	return nil
}

// errOtherAccount means that the identity service has returned a token of an account that was not requested.
var errOtherAccount = errors.New("the token is not of the requested account")

// remember records that a refused token could not be replaced. The caller holds the lock.
func (s *Source) remember(refused int64, now time.Time) {
	if refused != 0 {
		s.unreplaced, s.asked = refused, now
	}
}

// timeLeft returns the time until a token expires, and reports whether this time is known. The absolute time is used
// only if the response contains no duration, because the clocks of the gateway and the identity service can differ.
func timeLeft(resp *identityv1.GetAccessTokenResponse, now time.Time) (left time.Duration, ok bool) {
	switch {
	case resp.GetExpiresIn() != nil:
		return resp.GetExpiresIn().AsDuration(), true
	case resp.GetExpires() != nil:
		return resp.GetExpires().AsTime().Sub(now), true
	default:
		return 0, false
	}
}

// cause converts an error from the identity service into an [upstream.CauseError] that tells an operator or a caller
// what to do.
func (s *Source) cause(err error) error {
	out := &upstream.CauseError{Detail: status.Convert(err).Message(), Err: fmt.Errorf("get an access token for %s: %w", s.server, err)}
	switch {
	case errors.Is(err, errOtherAccount):
		out.Text = "the identity service has returned the access token of another account, because its version is older than that of the gateway: update all replicas of the identity service"
	case rpc.Reason(err) == "LOGIN_REQUIRED":
		out.Text, out.SignIn = s.signIn(), s.IsOfPerson()
	case rpc.Reason(err) == "CALLER_BLOCKED":
		out.Text, out.SignIn, out.Lasts = "an operator has blocked "+s.person()+", whose account at the server would be used", true, true
	case status.Code(err) == codes.NotFound, rpc.Reason(err) == "CREDENTIALS_DIFFER":
		out.Text = "the identity service does not know these credentials of the server: restart the mesh with the same configuration for all services"
	default:
		out.Text = "there is no access token for the server now: try again later"
		out.RetryAfter = failurePause
	}
	if out.OfPerson = s.IsOfPerson(); out.OfPerson {
		out.Detail = "" // only the person and operators may read about the account
	}
	return out
}

// person returns the subject of the person in a form that can be shown.
func (s *Source) person() string { return upstream.Escaped(s.account.Person.Subject, maxShownSubject) }

// maxShownSubject is the maximum length, in bytes, of a subject in an error.
const maxShownSubject = 128

// signIn returns a clause that says who has to sign in, and how.
func (s *Source) signIn() string {
	switch {
	case s.IsOfPerson():
		return s.person() + " is not signed in at the server with their own account, and has to run `sluice login` and then `sluice connect " + s.server + "`; then repeat the call"
	case s.account.ForDiscovery:
		return "the gateway can't list the tools of the server: an operator has to run `sluice connect " + s.server + " --discovery`"
	default:
		return "the mesh is not signed in at the server: an operator has to run `sluice connect " + s.server + "`"
	}
}

// RefusedCause returns the cause of an error for a response in which the server refuses the access token. It returns err
// as the cause's error. scopes are the scopes that the server requires, in a form that can be shown, or "" if the
// server has named none. isRefused is true if the response has a challenge for bearer tokens (RFC 6750, section 3).
func (s *Source) RefusedCause(statusCode int, isRefused bool, scopes string, err error) *upstream.CauseError {
	out := &upstream.CauseError{Err: err, OfPerson: s.IsOfPerson(), SignIn: s.IsOfPerson() && isRefused}
	who, command, whose := "an operator has", "sluice connect "+s.server, ""
	switch {
	case s.IsOfPerson():
		who, whose = s.person()+" has", " of "+s.person()
	case s.account.ForDiscovery:
		command, whose = command+" --discovery", " for listing tools"
	}
	switch {
	case scopes != "":
		out.Text = fmt.Sprintf("the server requires scopes that the access token%s does not have (HTTP %d): `%s`; an operator has to add them to servers.%s.credentials.oauth.scopes, and then %s to run `%s`", whose, statusCode, scopes, s.server, who, command)
	case s.IsOfPerson() && isRefused && statusCode == http.StatusUnauthorized:
		out.Text = fmt.Sprintf("the server refuses the access token%s (HTTP %d): %s to run `sluice login` and then `%s`, with an account that the server accepts", whose, statusCode, who, command)
	default:
		out.Text = fmt.Sprintf("the server refuses the access token%s (HTTP %d): %s to run `%s`, with an account and scopes that the server accepts", whose, statusCode, who, command)
	}
	return out
}

// IsOfPerson reports whether the account belongs to a person.
func (s *Source) IsOfPerson() bool { return s.account.Person != (principal.Key{}) }
