// Package accesstoken gets the access tokens with which the gateway calls servers that require OAuth. The identity
// service stores and refreshes the tokens. The gateway stores the tokens only in memory.
package accesstoken

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

const (
	// useBefore is how long before a token expires the gateway stops using it. If the token is valid for less than four
	// times this duration when the gateway gets it, the gateway stops using it when a quarter of that time is left.
	useBefore = 20 * time.Second
	// maxAge is how long a token is used before the gateway asks whether it is still the newest one, because an
	// operator may have deleted or replaced the connection.
	maxAge = 30 * time.Second
	// askTimeout is the timeout of a request to the identity service, which may have to refresh the token first.
	askTimeout = 45 * time.Second
	// failurePause is how long the gateway waits after an error before it asks again.
	failurePause = time.Second
)

// Token is an access token.
type Token struct {
	// Text is the token as it is sent in the header `Authorization: Bearer TEXT`.
	Text       string
	generation int64
	// useUntil is the time after which the gateway asks for another token.
	useUntil time.Time
}

// Source returns the access tokens for one server. It is safe for concurrent use.
type Source struct {
	client      identityv1.ConnectionServiceClient
	server, url string
	requests    singleflight.Group

	mu   sync.Mutex
	last Token
	// failed is the time of the last error.
	failed time.Time
	err    error
}

// New returns the source of the access tokens for a configured server. The tokens are sent to the given URL.
func New(client identityv1.ConnectionServiceClient, server, url string) *Source {
	return &Source{client: client, server: server, url: url}
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

// Replace returns the token to use instead of a token that the server has refused. isNew is true if this is a different
// token.
func (s *Source) Replace(ctx context.Context, refused Token) (next Token, isNew bool, err error) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last.Text != "" && last.generation != refused.generation && time.Now().Before(last.useUntil) { // another request has replaced it
		return last, true, nil
	}
	next, err = s.askOnce(ctx, refused.generation)
	return next, err == nil && next.generation != refused.generation, err
}

// askOnce gets a token from the identity service. Concurrent calls share one request. The request continues even if the
// call that started it ends.
func (s *Source) askOnce(ctx context.Context, refused int64) (Token, error) {
	answers := s.requests.DoChan(strconv.FormatInt(refused, 10), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return s.ask(ctx, refused)
	})
	select {
	case <-ctx.Done():
		return Token{}, context.Cause(ctx)
	case answer := <-answers:
		token, _ := answer.Val.(Token)
		return token, answer.Err
	}
}

// ask gets a token from the identity service.
func (s *Source) ask(ctx context.Context, refused int64) (Token, error) {
	resp, err := s.client.GetAccessToken(ctx, &identityv1.GetAccessTokenRequest{Server: s.server, Url: s.url, RefusedGeneration: refused})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		err = s.cause(err)
		if refused == 0 { // otherwise other requests can still use the last token
			s.err, s.failed, s.last = err, time.Now(), Token{}
		}
		return Token{}, err
	}
	now := time.Now()
	next := Token{Text: resp.GetAccessToken(), generation: resp.GetGeneration(), useUntil: now.Add(maxAge)}
	if resp.GetExpires() != nil {
		left := resp.GetExpires().AsTime().Sub(now)
		next.useUntil = now.Add(min(maxAge, left-min(useBefore, left/4)))
	}
	if next.generation >= s.last.generation || !now.Before(s.last.useUntil) { // the generation is smaller if the store of the identity service was restored from a backup
		s.last, s.err = next, nil
	}
	return next, nil
}

// cause returns an error that says what an operator or a caller can do about err.
func (s *Source) cause(err error) error {
	out := &upstream.CauseError{Detail: status.Convert(err).Message(), Err: fmt.Errorf("get an access token for %s: %w", s.server, err)}
	switch {
	case rpc.Reason(err) == "LOGIN_REQUIRED":
		out.Text = "the mesh is not signed in at the server: an operator has to run `sluice connect " + s.server + "`"
	case status.Code(err) == codes.NotFound:
		out.Text = "the identity service does not know the credentials of the server: restart it with the same configuration"
	default:
		out.Text = "there is no access token for the server now: try again later"
		out.RetryAfter = failurePause
	}
	return out
}

// RefusedCause returns the message for a call to a server that refuses every access token with this HTTP status.
func (s *Source) RefusedCause(statusCode int) string {
	return fmt.Sprintf("the server refuses the access token of the mesh (HTTP %d): an operator has to run `sluice connect %s`, with an account and scopes that the server accepts", statusCode, s.server)
}
