package identity_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// crashPoint is a point of a refresh at which the replica is killed. The lease is also the record that the refresh token
// may have been sent: both are one change of one row.
type crashPoint int

const (
	// beforeLease is before anything is stored.
	beforeLease crashPoint = iota
	// duringLease is before the change with the lease is complete on disk.
	duringLease
	// afterLease is before the request with the refresh token is sent.
	afterLease
	// afterRequest is after the request was sent. In half of the cases, the authorization server has already used the
	// refresh token.
	afterRequest
	// afterResponse is after the new tokens have arrived, and before they are stored.
	afterResponse
	// afterStorage is after the new tokens are stored, and before the gateway has received the access token.
	afterStorage
)

var crashPoints = map[string]crashPoint{
	"before the lease": beforeLease, "during the lease": duringLease, "after the lease": afterLease,
	"after the request": afterRequest, "after the response": afterResponse, "after the storage": afterStorage,
}

// crash is one refresh during which a replica is killed. Its fields are chosen by a seed.
type crash struct {
	point crashPoint
	// isProcessed is true if the authorization server has used the refresh token before the replica is killed.
	isProcessed bool
	// grace is how long the authorization server accepts a used refresh token again.
	grace time.Duration
	// rotations is the number of refreshes before the crash. left is the remaining lifetime of the access token at the
	// crash, which is negative if the token has expired. delay is the time from the crash to the first request to the next
	// replica. callers is the number of gateways that ask the killed replica.
	rotations   int
	left, delay time.Duration
	callers     int
	// cut is the part of the lease that is on disk if the replica is killed during the change, from 0 to 1.
	cut float64

	mu   sync.Mutex
	dead bool
	// armed is true if the next refresh is the one during which the replica is killed. kill saves what is on disk.
	armed bool
	kill  func()
}

func newCrash(point crashPoint, seed uint64) *crash {
	rnd := rand.New(rand.NewPCG(seed, uint64(point)))
	c := &crash{
		point: point, rotations: rnd.IntN(3), left: time.Second + below(rnd, rotatedBefore-2*time.Second),
		delay: below(rnd, 45*time.Second), callers: 1 + rnd.IntN(3), cut: rnd.Float64(),
	}
	if rnd.IntN(5) == 0 {
		c.left = -below(rnd, time.Hour)
	}
	if rnd.IntN(2) == 0 {
		c.grace = 2 * time.Minute
	}
	c.isProcessed = point > afterRequest || point == afterRequest && rnd.IntN(2) == 0
	return c
}

func below(rnd *rand.Rand, limit time.Duration) time.Duration {
	return time.Duration(rnd.Int64N(int64(limit)))
}

func (c *crash) String() string {
	return fmt.Sprintf("point %d, processed %t, grace %v, %d rotations before, %v left, next request after %v, %d callers", c.point, c.isProcessed, c.grace, c.rotations, c.left, c.delay, c.callers)
}

// isLeased reports whether the killed replica has the lease.
func (c *crash) isLeased() bool { return c.point >= afterLease && c.point < afterStorage }

// isLost reports whether only the killed replica has received the new refresh token.
func (c *crash) isLost() bool { return c.isProcessed && c.point < afterStorage }

// hook is the [oauthtest.Hook] of the replica that is killed. A killed replica sends and receives nothing.
func (c *crash) hook(at oauthtest.Stage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return oauthtest.ErrClosed
	}
	isHere := at == oauthtest.Received && !c.isProcessed || at == oauthtest.Processed && c.isProcessed
	if !c.armed || !isHere || c.point == beforeLease || c.point == afterStorage {
		return nil
	}
	c.end()
	if c.point == afterResponse {
		return nil
	}
	return oauthtest.ErrClosed
}

// end kills the replica. The caller holds the lock.
func (c *crash) end() {
	c.dead = true
	c.kill()
}

// A replica is killed at each point of a refresh, and the next replica continues with what is on disk. The refresh token
// is used once if the killed replica has not used it, or if its response was stored. Otherwise the next replica tries it
// once more, after the lease has ended. If the authorization server does not accept it again, one sign-in is required,
// and no more requests are sent before it.
func TestRotation_SeededCrashesOfAReplica(t *testing.T) {
	t.Parallel()
	imported := importedStore(t, "sqlite")
	for name, point := range crashPoints {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(norace.Some(200)) {
				runCrash(t, imported, newCrash(point, seed), seed)
			}
		})
	}
}

// runCrash runs one crash with SQLite, in virtual time. imported is the data directory of importedStore.
func runCrash(t *testing.T, imported string, c *crash, seed uint64) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
		if err := copyStore(imported, one, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		server := &oauthtest.Server{Life: rotatedLife, Grace: c.grace}
		killed := startProcess(t, "sqlite", one, "wiki", server.Transport(c.hook))
		defer killed.close(t)
		r := &rotation{T: t, server: server, tokens: make(map[int64]string), sleep: time.Sleep, what: fmt.Sprintf("seed %d, %v", seed, c)}
		r.begin(killed, c)
		before := logSize(one)
		c.kill = func() {
			size := logSize(one)
			if c.point == duringLease {
				size = before + int64(c.cut*float64(size-before))
			}
			if err := copyStore(one, two, size); err != nil {
				r.fail("copy the store: %v", err)
			}
		}
		r.crash(killed, c)
		r.sleep(c.delay)
		next := startProcess(t, "sqlite", two, "wiki", server.Transport(nil))
		defer next.close(t)
		r.checkNext(next, c)
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
}

// rotation checks the access tokens that gateways receive.
type rotation struct {
	*testing.T
	server *oauthtest.Server
	// what describes the case in errors.
	what  string
	sleep func(time.Duration)
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
	r.last, r.expires = got.GetGeneration(), got.GetExpires().AsTime()
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

// crash refreshes the token until the replica is killed.
func (r *rotation) crash(p *process, c *crash) {
	c.mu.Lock()
	c.armed = true
	if c.point == beforeLease {
		c.end()
	}
	c.mu.Unlock()
	var calls sync.WaitGroup
	answers := make(chan *identityv1.GetAccessTokenResponse, c.callers)
	for range c.callers {
		calls.Go(func() {
			got, err := p.ask(r.Context())
			if c.point == afterStorage && err != nil {
				r.fail("before the crash: %v", err)
			}
			answers <- got
		})
	}
	r.crashed = time.Now()
	calls.Wait() // what a killed replica returns has no effect
	if c.point == afterStorage {
		c.mu.Lock()
		c.end()
		c.mu.Unlock()
		r.unanswered = <-answers
	}
	if !c.dead {
		r.fail("the replica was not killed")
	}
	r.uses = len(r.server.Uses())
}

// checkNext checks the replica that continues after a crash, and all uses of refresh tokens.
func (r *rotation) checkNext(p *process, c *crash) {
	ended := r.crashed.Add(leaseTime)
	if c.isLeased() && time.Now().Before(ended) && time.Now().Before(r.expires) {
		got, err := p.ask(r.Context())
		r.want(got, err, r.last)
		if n := len(r.server.Uses()); n != r.uses {
			r.fail("during the lease, %d refresh tokens were sent", n-r.uses)
		}
		r.sleep(time.Until(ended))
	}
	asked := time.Now()
	got, err := p.ask(r.Context())
	if c.isLeased() && time.Now().Before(ended) || time.Since(asked) > max(0, ended.Sub(asked))+leaseDelay {
		r.fail("a request has taken %v, and the lease %v", time.Since(asked), ended.Sub(asked))
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
	for range 2 {
		for range 5 {
			got, err := p.ask(r.Context())
			r.want(got, err, r.last)
			r.sleep((rotatedLife - rotatedBefore - time.Second) / 5)
		}
		r.sleep(2 * time.Second)
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
