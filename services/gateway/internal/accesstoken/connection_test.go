package accesstoken_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

var ana = principal.Key{Tenant: "t", Subject: "ana"}

// answering is a connection service that returns the given response or error. It is safe for concurrent use.
type answering struct {
	identityv1.ConnectionServiceClient

	mu       sync.Mutex
	resp     *identityv1.GetAccessTokenResponse
	err      error
	requests int
}

func (a *answering) GetAccessToken(context.Context, *identityv1.GetAccessTokenRequest, ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests++
	return a.resp, a.err
}

// count returns how many requests the service has received.
func (a *answering) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requests
}

// set changes the answer.
func (a *answering) set(resp *identityv1.GetAccessTokenResponse, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.resp, a.err = resp, err
}

// tokenOf returns a response with a token of a person's connection.
func tokenOf(subject string, generation int64, connected time.Time) *identityv1.GetAccessTokenResponse {
	return &identityv1.GetAccessTokenResponse{
		AccessToken: "token", Generation: generation, Person: &identityv1.Person{Tenant: "t", Subject: subject}, Connected: timestamppb.New(connected),
	}
}

func refusedFor(reason string) error {
	return (&rpc.Error{Code: codes.FailedPrecondition, Reason: reason, Err: errors.New("no")}).GRPCStatus().Err()
}

// A token of an account that was not requested is refused. An identity service of an older version names no account.
func TestToken_OfAnotherAccountIsRefused(t *testing.T) {
	t.Parallel()
	older := &identityv1.GetAccessTokenResponse{AccessToken: "shared", Generation: 1}
	otherTenant := tokenOf("ana", 1, time.Now())
	otherTenant.Person.Tenant = "u"
	discovery := &identityv1.GetAccessTokenResponse{AccessToken: "lists", Generation: 1, ForDiscovery: true}
	both := tokenOf("ana", 1, time.Now())
	both.ForDiscovery = true
	for name, c := range map[string]struct {
		account accesstoken.Account
		resp    *identityv1.GetAccessTokenResponse
		isOK    bool
	}{
		"a person, an older version":        {accesstoken.Account{Person: ana}, older, false},
		"a person":                          {accesstoken.Account{Person: ana}, tokenOf("ana", 1, time.Now()), true},
		"another person":                    {accesstoken.Account{Person: ana}, tokenOf("ben", 1, time.Now()), false},
		"a person of another tenant":        {accesstoken.Account{Person: ana}, otherTenant, false},
		"a person, for listing":             {accesstoken.Account{Person: ana}, both, false},
		"listing, an older version":         {accesstoken.Account{ForDiscovery: true}, older, false},
		"listing":                           {accesstoken.Account{ForDiscovery: true}, discovery, true},
		"listing, a person":                 {accesstoken.Account{ForDiscovery: true}, tokenOf("ana", 1, time.Now()), false},
		"the shared account, older version": {accesstoken.Account{}, older, true},
		"the shared account, for listing":   {accesstoken.Account{}, discovery, false},
		"the shared account, a person":      {accesstoken.Account{}, tokenOf("ana", 1, time.Now()), false},
	} {
		got, err := accesstoken.New(&answering{resp: c.resp}, "wiki", "https://wiki.example.com/mcp", c.account).Token(t.Context())
		cause := upstream.CauseOf(err)
		if c.isOK != (err == nil) || c.isOK != (got.Text != "") || err != nil && (cause == nil || cause.SignIn || !strings.Contains(cause.Text, "update all replicas")) {
			t.Errorf("%s: %+v, %v, with the cause %+v", name, got, err, cause)
		}
	}
}

// A connection ends when the person connects the server again, when she has disconnected it, and when she is blocked,
// but neither with a refresh nor because the identity service does not answer. Then its tokens are not used any more.
func TestConnection_EndsWithTheSignIn(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	for name, c := range map[string]struct {
		resp *identityv1.GetAccessTokenResponse
		err  error
		ends bool
		says string
	}{
		"connected again":  {resp: tokenOf("ana", 2, begin.Add(time.Microsecond)), ends: true, says: "connected again"},
		"refreshed":        {resp: tokenOf("ana", 2, begin)},
		"disconnected":     {err: refusedFor("LOGIN_REQUIRED"), ends: true, says: "sluice connect wiki"},
		"blocked":          {err: refusedFor("CALLER_BLOCKED"), ends: true, says: "blocked ana"},
		"not available":    {err: status.Error(codes.Unavailable, "away")},
		"of someone else":  {resp: tokenOf("ben", 2, begin.Add(time.Microsecond))},
		"another config":   {err: refusedFor("CREDENTIALS_DIFFER")},
		"an older version": {resp: &identityv1.GetAccessTokenResponse{AccessToken: "shared", Generation: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := &answering{resp: tokenOf("ana", 1, begin)}
				source := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{Person: ana})
				signedIn, err := source.Connection(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var why error
				defer signedIn.AfterEnd(func(err error) { why = err })()
				from.set(c.resp, c.err)
				time.Sleep(31 * time.Second)
				if _, err := signedIn.Token(t.Context()); (err == nil) != (c.err == nil && !c.ends && name == "refreshed") || errors.Is(err, upstream.ErrSessionLost) != c.ends {
					t.Errorf("the next token: %v", err)
				}
				synctest.Wait()
				if cause := upstream.CauseOf(why); errors.Is(why, upstream.ErrSessionLost) != c.ends || c.ends && (cause == nil || !cause.OfPerson || !strings.Contains(cause.Text, c.says)) {
					t.Errorf("the connection has ended with %v and the cause %+v", why, cause)
				}
				if (signedIn.Err() != nil) != c.ends || signedIn.Last().Text != "token" {
					t.Errorf("%v, %+v", signedIn.Err(), signedIn.Last())
				}
				if got, _ := source.Token(t.Context()); c.err != nil && got.Text != "" {
					t.Errorf("the source still has the token %+v", got)
				}
			})
		})
	}
}

// A refused token whose connection was deleted ends the connection at once.
func TestConnection_EndsWhenARefusedTokenCantBeReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &answering{resp: tokenOf("ana", 1, time.Now())}
		source := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{Person: ana})
		signedIn, err := source.Connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		from.set(nil, refusedFor("LOGIN_REQUIRED"))
		if _, _, err := source.Replace(t.Context(), signedIn.Last()); !upstream.IsSignIn(err) {
			t.Errorf("the error is %v", err)
		}
		if got, err := source.Token(t.Context()); got.Text != "" || !upstream.IsSignIn(err) || !errors.Is(signedIn.Err(), upstream.ErrSessionLost) {
			t.Errorf("%+v, %v, %v", got, err, signedIn.Err())
		}
	})
}

// A stream ends within a minute after its connection has ended, or after the identity service has stopped answering. A
// stream without such a fault stays open, and asks for the token every 30 s.
func TestHold_StreamEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	for name, c := range map[string]struct {
		resp *identityv1.GetAccessTokenResponse
		err  error
		ends bool
	}{
		"nothing changes": {resp: tokenOf("ana", 1, begin)}, "refreshed": {resp: tokenOf("ana", 2, begin)},
		"connected again": {resp: tokenOf("ana", 2, begin.Add(time.Second)), ends: true},
		"disconnected":    {err: refusedFor("LOGIN_REQUIRED"), ends: true},
		"not available":   {err: status.Error(codes.Unavailable, "away"), ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := &answering{resp: tokenOf("ana", 1, begin)}
				signedIn, err := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{Person: ana}).Connection(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				held, release := signedIn.Hold(t.Context())
				defer release()
				time.Sleep(10 * time.Minute)
				if n := from.count(); held.Err() != nil || n < 20 || n > 22 {
					t.Fatalf("after 10 minutes with %d requests: %v", n, context.Cause(held))
				}
				from.set(c.resp, c.err)
				time.Sleep(time.Minute)
				if (held.Err() != nil) != c.ends {
					t.Errorf("a minute later, the stream has ended with %v", context.Cause(held))
				}
			})
		})
	}
}

// A stream of a shared account stays open if the identity service, in an older version, names no time of the sign-in.
func TestHold_OlderVersionNamesNoTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &answering{resp: &identityv1.GetAccessTokenResponse{AccessToken: "token", Generation: 1}}
		signedIn, err := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{}).Connection(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held, release := signedIn.Hold(t.Context())
		defer release()
		for _, connected := range []*timestamppb.Timestamp{nil, timestamppb.Now(), nil} { // two versions answer in turn
			from.set(&identityv1.GetAccessTokenResponse{AccessToken: "token", Generation: 1, Connected: connected}, nil)
			time.Sleep(time.Minute)
			if held.Err() != nil {
				t.Errorf("the stream has ended with %v", context.Cause(held))
			}
		}
	})
}
