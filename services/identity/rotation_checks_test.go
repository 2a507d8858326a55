package identity_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// rotation checks the access tokens that gateways receive.
type rotation struct {
	*testing.T
	server *oauthtest.Server
	// what describes the case in errors.
	what string
	// now and sleep are the clock. tolerance is how long a request may take that waits for no lease.
	now       func() time.Time
	sleep     func(time.Duration)
	tolerance time.Duration
	// tokens are the received tokens, by generation. last is the highest generation, and expires is when it expires.
	tokens  map[int64]string
	last    int64
	expires time.Time
	// crashed is the time of the crash. uses is the number of uses of refresh tokens until then.
	crashed time.Time
	uses    int
	// unanswered is the response that the gateway did not receive because of the crash.
	unanswered *identityv1.GetAccessTokenResponse
}

func (r *rotation) fail(format string, args ...any) {
	r.Helper()
	r.Errorf("%s: %s", r.what, fmt.Sprintf(format, args...))
}

// want checks that a response has a valid token of the given generation.
func (r *rotation) want(got *identityv1.GetAccessTokenResponse, err error, generation int64) {
	r.Helper()
	text, known := r.tokens[got.GetGeneration()]
	switch {
	case err != nil:
		r.fail("there is no token: %v", err)
	case got.GetGeneration() != generation:
		r.fail("the token has the generation %d, want %d", got.GetGeneration(), generation)
	case known && text != got.GetAccessToken():
		r.fail("there are two tokens of the generation %d: %s and %s", generation, text, got.GetAccessToken())
	case !r.server.Accepts(got.GetAccessToken()):
		r.fail("the server does not accept the token of the generation %d", generation)
	}
	r.tokens[got.GetGeneration()] = got.GetAccessToken()
	r.last, r.expires = got.GetGeneration(), r.now().Add(got.GetExpiresIn().AsDuration())
}

// begin signs in, refreshes the token some times, and waits until the next refresh is due.
func (r *rotation) begin(p *process, c *crash) {
	r.Helper()
	p.signIn(r.T, r.server)
	for i := range c.rotations + 1 {
		if i > 0 {
			r.sleep(rotatedLife - rotatedBefore + time.Second)
		}
		got, err := p.ask(r.Context())
		r.want(got, err, int64(i+1))
	}
	r.sleep(rotatedLife - c.left)
}

// crash refreshes the token until the replica is killed. The calls of the result end with the killed replica.
func (r *rotation) crash(p *process, c *crash) (returned *sync.WaitGroup) {
	c.mu.Lock()
	c.armed = true
	c.mu.Unlock()
	if c.point == beforeLease {
		c.end()
	}
	r.crashed = r.now()
	returned = new(sync.WaitGroup)
	answers := make(chan *identityv1.GetAccessTokenResponse, c.callers)
	for range c.callers {
		returned.Go(func() {
			got, err := p.ask(r.Context()) // what a killed replica returns has no effect
			if c.point == afterStorage && err != nil {
				r.fail("before the crash: %v", err)
			}
			answers <- got
		})
	}
	if c.point == afterStorage {
		returned.Wait()
		c.end()
		r.unanswered = <-answers
	}
	select {
	case <-c.dead:
	case <-time.After(time.Minute):
		r.fail("the replica was not killed")
	}
	r.uses = len(r.server.Uses())
	return returned
}

// checkNext checks the replica that continues after a crash, and all uses of refresh tokens.
func (r *rotation) checkNext(p *process, c *crash) {
	ended := r.crashed.Add(leaseTime)
	if c.isLeased() && r.now().Before(ended) && r.now().Before(r.expires) {
		got, err := p.ask(r.Context())
		r.want(got, err, r.last)
		if n := len(r.server.Uses()); n != r.uses {
			r.fail("during the lease, %d refresh tokens were sent", n-r.uses)
		}
		r.sleep(ended.Sub(r.now()))
	}
	asked := r.now()
	got, err := p.ask(r.Context())
	var wait time.Duration
	if c.isLeased() {
		wait = max(0, ended.Sub(asked))
	}
	if took := r.now().Sub(asked); took < wait || took > wait+r.tolerance {
		r.fail("a request has taken %v, and the lease ended after %v", took, wait)
	}
	if c.isLost() && c.grace == 0 {
		r.checkLoginRequired(p, err)
	} else {
		r.want(got, err, r.last+1)
	}
	if c.point == afterStorage && (got.GetAccessToken() != r.unanswered.GetAccessToken() || len(r.server.Uses()) != r.uses) {
		r.fail("the stored token %s was not used, but %s", r.unanswered.GetAccessToken(), got.GetAccessToken())
	}
	r.checkRotation(p)
	r.checkUses(c, ended)
}

// checkLoginRequired checks that a sign-in is required, and that no request is sent before it. Then it signs in.
func (r *rotation) checkLoginRequired(p *process, err error) {
	r.Helper()
	sent := len(r.server.Uses())
	for range 10 {
		rpctest.WantStatus(r.T, err, codes.FailedPrecondition, "LOGIN_REQUIRED")
		if err == nil || !strings.Contains(err.Error(), "invalid_grant") {
			r.fail("the error does not say why: %v", err)
		}
		r.sleep(time.Minute)
		_, err = p.ask(r.Context())
	}
	if n := len(r.server.Uses()); n != sent {
		r.fail("%d more refresh tokens were sent", n-sent)
	}
	p.signIn(r.T, r.server)
	got, err := p.ask(r.Context())
	r.want(got, err, r.last+1)
}

// checkRotation checks that the token is refreshed twice more.
func (r *rotation) checkRotation(p *process) {
	r.Helper()
	const margin = 20 * time.Second
	for range 2 {
		for range 5 {
			got, err := p.ask(r.Context())
			r.want(got, err, r.last)
			r.sleep((rotatedLife - rotatedBefore - margin) / 5)
		}
		r.sleep(margin + time.Second)
		got, err := p.ask(r.Context())
		r.want(got, err, r.last+1)
	}
}

// checkUses checks the number of sign-ins and all uses of refresh tokens. ended is the end of the lease.
func (r *rotation) checkUses(c *crash, ended time.Time) {
	var reused, refused int
	for _, use := range r.server.Uses() {
		if use.IsReuse {
			if reused++; use.Time.Before(ended) {
				r.fail("%s was sent again before the lease ended", use.Token)
			}
		}
		if use.IsRefused {
			refused++
		}
	}
	var wantReused, wantRefused int
	if c.isLost() {
		wantReused = 1
	}
	if c.isLost() && c.grace == 0 {
		wantRefused = 1
	}
	if logins := r.server.Logins(); reused != wantReused || refused != wantRefused || logins != 1+wantRefused {
		r.fail("%d refresh tokens were sent again, %d were refused, and there were %d sign-ins", reused, refused, logins)
	}
}
