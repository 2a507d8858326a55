package accesstoken_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/identity" //nolint:depguard // the test is about the tokens between the two services
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/norace"
	"github.com/sluice-mesh/sluice/services/internal/oauthtest"
)

const (
	// sessions is how many sessions of one person use one server. Each has its own Source, as on its own gateway.
	sessions = 50
	// maxBetween is the maximum time between two calls of a session.
	maxBetween = 4 * time.Minute
)

// weather is how the authorization server behaves during the day.
type weather struct {
	server *oauthtest.Server
	// failing is the share of refreshes that the server does not process: it answers 429 or 503, or closes the connection.
	// losing is the share of refreshes after which it closes the connection before it answers.
	failing, losing float64
	// losesOnce is true if the server closes the connection after one refresh, in the middle of the day.
	losesOnce bool
	// logins is the wanted number of sign-ins. isReusing is true if refresh tokens may be sent again after a lost response.
	logins    int
	isReusing bool
	// endsTokens is true if the server may refuse access tokens that have not expired.
	endsTokens bool
}

// Fifty sessions of one person call a server for a day, through two replicas of the identity service. The access tokens
// expire after five minutes, and each refresh token is for a single use. The person signs in once, unless the response
// to a refresh was lost and the authorization server does not accept the refresh token again.
func TestRotation_SeededSessionsOfADay(t *testing.T) {
	t.Parallel()
	const life = 5 * time.Minute
	for name, w := range map[string]weather{
		"single use":              {server: &oauthtest.Server{Life: life}, failing: 0.25, logins: 1},
		"single use, with grace":  {server: &oauthtest.Server{Life: life, Grace: time.Minute}, failing: 0.2, losing: 0.1, logins: 1, isReusing: true},
		"old access tokens end":   {server: &oauthtest.Server{Life: life, EndsAccessTokens: true}, failing: 0.1, logins: 1, endsTokens: true},
		"a response that is lost": {server: &oauthtest.Server{Life: life}, losesOnce: true, logins: 2, isReusing: true, endsTokens: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hours := norace.Some(24)
			synctest.Test(t, func(t *testing.T) {
				d := &dayOfCalls{T: t, weather: w, hours: hours, begun: time.Now(), rnd: rand.New(rand.NewPCG(1, 2))}
				d.open()
				var running sync.WaitGroup
				for seed := range uint64(sessions) {
					running.Go(func() { d.session(rand.New(rand.NewPCG(seed, 3))) })
				}
				running.Wait()
				d.check()
			})
		})
	}
}

// dayOfCalls is a day of calls. It is safe for concurrent use.
type dayOfCalls struct {
	*testing.T
	weather
	hours    int
	begun    time.Time
	replicas []*oauthtest.Connections

	mu  sync.Mutex
	rnd *rand.Rand
	// lost is true if the response of [weather.losesOnce] was lost. signedOut is when a session was first refused because a
	// sign-in is required.
	lost      bool
	signedOut time.Time
	// calls, refused and resent count the calls of all sessions. refused is how many of them were refused because there was
	// no valid token, and resent how many were sent again with another token.
	calls, refused, resent int
}

func (d *dayOfCalls) length() time.Duration { return time.Duration(d.hours) * time.Hour }

// chance reports true for the given share of its calls.
func (d *dayOfCalls) chance(share float64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Float64() < share
}

// hook is an [oauthtest.Hook].
func (d *dayOfCalls) hook(at oauthtest.Stage) error {
	time.Sleep(200 * time.Millisecond)
	if at == oauthtest.Received {
		if !d.chance(d.failing) {
			return nil
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return []error{oauthtest.ErrLimited, oauthtest.ErrAway, oauthtest.ErrClosed}[d.rnd.IntN(3)]
	}
	if d.chance(d.losing) {
		return oauthtest.ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.losesOnce && !d.lost && 2*time.Since(d.begun) > d.length() {
		d.lost = true
		return oauthtest.ErrClosed
	}
	return nil
}

// open starts two replicas with one store, and signs in.
func (d *dayOfCalls) open() {
	dir := d.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	first := d.replica(one)
	ctx, stop := context.WithCancel(d.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	time.Sleep(time.Second) // the service imports the tokens of earlier versions, of which there are none
	stop()
	if err := <-ended; err != nil {
		d.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(two, "identity"), 0o700); err != nil {
		d.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(one, "identity", "identity.db"), filepath.Join(two, "identity", "identity.db")); err != nil {
		d.Fatal(err)
	}
	for _, svc := range []*identity.Service{first, d.replica(two)} {
		connections, err := oauthtest.NewConnections(svc)
		if err != nil {
			d.Fatal(err)
		}
		d.replicas = append(d.replicas, connections)
	}
	d.signIn()
}

func (d *dayOfCalls) replica(data string) *identity.Service {
	svc, err := identity.New(d.Context(), identity.Config{
		Identities: identity.Identities{Servers: map[string]identity.OAuthServer{"wiki": {URL: oauthtest.URL, ForEachPerson: true}}},
		Source:     "sqlite", Data: data, SealKey: strings.Repeat("5e", 32),
	}, identity.Deps{Tokens: new(authn.Tokens), Policy: noExports{}, Meter: noop.Meter{}, Log: slog.New(slog.DiscardHandler), Transport: d.server.Transport(d.hook)})
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		if err := svc.Close(); err != nil {
			d.Errorf("close a replica: %v", err)
		}
	})
	return svc
}

func (d *dayOfCalls) signIn() {
	if err := d.replicas[0].SignIn(d.Context(), d.server, "wiki", ana); err != nil {
		d.Error(err)
	}
}

// noExports is a policy service that has no tokens of earlier versions.
type noExports struct{ policyv1.PolicyServiceClient }

func (noExports) ExportTokens(context.Context, *policyv1.ExportTokensRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[policyv1.ExportTokensResponse], error) {
	return noStream{}, nil
}

type noStream struct{ grpc.ClientStream }

func (noStream) Recv() (*policyv1.ExportTokensResponse, error) { return nil, io.EOF }

// anyReplica sends each request to one of the replicas.
type anyReplica struct {
	identityv1.ConnectionServiceClient
	day *dayOfCalls
}

func (a anyReplica) GetAccessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest, opts ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	at := 0
	if a.day.chance(0.5) {
		at = 1
	}
	return a.day.replicas[at].GetAccessToken(ctx, req, opts...)
}

// session makes calls for a day. Some calls are at the same time as calls of other sessions.
func (d *dayOfCalls) session(rnd *rand.Rand) {
	source := accesstoken.New(anyReplica{day: d}, "wiki", oauthtest.URL, accesstoken.Account{Person: ana})
	for time.Since(d.begun) < d.length() {
		time.Sleep(time.Duration(rnd.Int64N(int64(maxBetween))))
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Until(time.Now().Truncate(maxBetween).Add(maxBetween)))
		}
		d.call(source, time.Duration(rnd.Int64N(int64(2*time.Second))))
	}
}

// call calls the server once, as the gateway does. latency is the time from getting the token to using it.
func (d *dayOfCalls) call(source *accesstoken.Source, latency time.Duration) {
	token, err := source.Token(d.Context())
	d.count(&d.calls)
	if err != nil {
		d.refuse(err)
		return
	}
	time.Sleep(latency) // meanwhile, a token can expire whose refresh has failed
	if d.server.Accepts(token.Text) {
		source.Accept(token)
		return
	}
	next, isNew, err := source.Replace(d.Context(), token)
	switch {
	case err != nil:
		d.refuse(err)
	case !isNew, !d.server.Accepts(next.Text):
		d.Errorf("after %v, a refused token is replaced with one that is not valid either (new: %t)", time.Since(d.begun), isNew)
	default:
		d.count(&d.resent)
		source.Accept(next)
	}
}

func (d *dayOfCalls) count(n *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*n++
}

// refuse checks the refusal of a call. Ten minutes after the first refusal that requires a sign-in, the person signs in.
func (d *dayOfCalls) refuse(err error) {
	d.count(&d.refused)
	cause, isDocumented := errors.AsType[*upstream.CauseError](err)
	switch {
	case !isDocumented:
		d.Errorf("after %v, a call is refused with %v", time.Since(d.begun), err)
	case d.logins > 1 && cause.SignIn && strings.Contains(cause.Text, "sluice connect wiki"):
		d.mu.Lock()
		isFirst := d.signedOut.IsZero()
		if isFirst {
			d.signedOut = time.Now()
		}
		d.mu.Unlock()
		if isFirst {
			time.Sleep(10 * time.Minute)
			d.signIn()
		}
	case !strings.Contains(cause.Text, "try again later") || cause.RetryAfter == 0:
		d.Errorf("after %v, a call is refused with %q", time.Since(d.begun), cause.Text)
	}
}

// check checks the sign-ins, the uses of refresh tokens, and the calls of the day.
func (d *dayOfCalls) check() {
	var rotated, reused, refused int
	uses := d.server.Uses()
	for i, use := range uses {
		switch {
		case use.IsRefused:
			refused++
		case use.IsReuse:
			reused++
			if use.Token != uses[i-1].Token {
				d.Errorf("%s was sent again after another refresh", use.Token)
			}
		default:
			rotated++
		}
	}
	d.Logf("%d calls, %d refused, %d sent again; %d refreshes, %d repeated, %d refused; %d sign-ins", d.calls, d.refused, d.resent, rotated, reused, refused, d.server.Logins())
	if got := d.server.Logins(); got != d.logins || refused != d.logins-1 || reused > 0 && !d.isReusing || d.losing > 0 && reused == 0 {
		d.Errorf("%d sign-ins, %d refused refresh tokens, %d accepted again", got, refused, reused)
	}
	// A token is used until its end if its refresh fails. The client measures this time from the response to the refresh,
	// and the server from the request. Therefore few calls have a token that has just expired.
	if !d.endsTokens && d.resent*1000 > d.calls {
		d.Errorf("%d of %d calls had a token that was not valid", d.resent, d.calls)
	}
	if rotated < 11*d.hours || rotated > 14*d.hours {
		d.Errorf("%d refreshes, want about one in five minutes", rotated)
	}
	limit := d.calls / 50
	if d.logins > 1 {
		limit += sessions * int(10*time.Minute/(maxBetween/2)) * 2
	}
	if d.refused > limit || d.calls < 1000*d.hours {
		d.Errorf("%d of %d calls were refused", d.refused, d.calls)
	}
	if d.resent > d.calls/1000 != d.server.EndsAccessTokens {
		d.Errorf("%d calls were sent again", d.resent)
	}
}
