package accesstoken

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// maxUnconfirmed is how long a stream stays open if the identity service does not answer whether the connection still
// exists. It is measured from the time at which the gateway would have asked for the next token.
const maxUnconfirmed = 25 * time.Second

// A Connection is one sign-in at a server, which has issued the tokens of a [Source] up to the next sign-in. A session at
// the server is used only with tokens of one connection, because the next connection can be of another account. A
// Connection is safe for concurrent use.
type Connection struct {
	source *Source
	// at is the time of the sign-in. It is zero if the identity service, in an older version, has not sent it.
	at   time.Time
	last atomic.Pointer[Token]
	// life is done when the connection has ended. Its cause is the error of later requests.
	life context.Context //nolint:containedctx // the lifetime of the connection
	end  context.CancelCauseFunc
}

// Connection returns the connection of the newest token. The error is that of [Source.Token].
func (s *Source) Connection(ctx context.Context) (*Connection, error) {
	token, err := s.Token(ctx)
	return token.connection, err
}

// connectionOf returns the connection of the token in a response. If the server was connected again, connectionOf ends
// the connection before. The caller holds the lock.
func (s *Source) connectionOf(resp *identityv1.GetAccessTokenResponse) *Connection {
	var at time.Time
	if resp.GetConnected() != nil {
		at = resp.GetConnected().AsTime()
	}
	if now := s.current; now != nil && (now.at.Equal(at) || at.IsZero() || now.at.IsZero()) {
		if now.at.IsZero() {
			now.at = at
		}
		return now
	}
	s.endConnection(s.replaced())
	c := &Connection{source: s, at: at}
	c.life, c.end = context.WithCancelCause(context.Background())
	s.current = c
	return c
}

// endConnection ends the current connection because of an error. Its sessions and streams end. The caller holds the lock.
func (s *Source) endConnection(why error) {
	if s.current != nil {
		s.current.end(fmt.Errorf("%w: %w: %w", upstream.ErrSessionLost, upstream.ErrSignedOut, why))
		s.current, s.last = nil, Token{}
	}
}

// isFinal reports whether an error of the identity service means that the connection has ended, or must not be used.
func isFinal(err error) bool {
	reason := rpc.Reason(err)
	return reason == "LOGIN_REQUIRED" || reason == "CALLER_BLOCKED"
}

// replaced returns the error of a session whose server was connected again.
func (s *Source) replaced() error {
	return &upstream.CauseError{
		Text:     "the server was connected again, possibly with another account, so the session of the old connection has ended: repeat the call in a new session",
		OfPerson: s.IsOfPerson(), Err: errReplaced,
	}
}

var errReplaced = errors.New("the server was connected again")

// Token returns an access token of the connection that has not expired. If the connection has ended, the error wraps
// [upstream.ErrSessionLost], [upstream.ErrSignedOut] and an [upstream.CauseError].
func (c *Connection) Token(ctx context.Context) (Token, error) {
	if err := c.Err(); err != nil {
		return Token{}, err
	}
	token, err := c.source.Token(ctx)
	if ended := c.Err(); ended != nil {
		return Token{}, ended
	}
	return token, err
}

// Last returns the newest token of the connection, which may be used only to end sessions after the connection has
// ended.
func (c *Connection) Last() Token { return *c.last.Load() }

// Err returns nil as long as the connection has not ended. Then it returns the error that [Connection.Token] returns. A
// nil Connection never ends.
func (c *Connection) Err() error {
	if c == nil || c.life.Err() == nil {
		return nil
	}
	return context.Cause(c.life)
}

// AfterEnd calls f in another goroutine when the connection has ended, unless stop is called before. A nil Connection
// never ends.
func (c *Connection) AfterEnd(f func(why error)) (stop func() bool) {
	if c == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(c.life, func() { f(context.Cause(c.life)) })
}

// Hold returns a context for a stream. It is cancelled when the connection has ended. Until release is called, Hold asks
// the identity service for the newest token whenever it would have to be renewed. If the identity service does not
// answer, the context is also cancelled, after less than a minute. A nil Connection never ends.
func (c *Connection) Hold(ctx context.Context) (held context.Context, release context.CancelFunc) {
	held, cancel := context.WithCancelCause(ctx)
	stop := c.AfterEnd(func(why error) { cancel(why) })
	if c != nil {
		go c.confirm(held, cancel)
	}
	return held, func() {
		stop()
		cancel(context.Canceled)
	}
}

// confirm asks for tokens until ctx is done. It cancels ctx if the identity service does not answer.
func (c *Connection) confirm(ctx context.Context, cancel context.CancelCauseFunc) {
	wait := max(0, time.Until(c.Last().useUntil))
	failing := time.AfterFunc(wait+maxUnconfirmed, func() { cancel(errUnconfirmed) })
	defer failing.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(wait, failurePause)):
		}
		token, err := c.Token(ctx)
		if wait = failurePause; err == nil {
			wait = time.Until(token.useUntil)
			failing.Reset(wait + maxUnconfirmed)
		}
	}
}

// errUnconfirmed means that a stream ends because it is not known whether its connection still exists.
var errUnconfirmed = errors.New("the identity service did not confirm that the access token of a stream is still valid")
