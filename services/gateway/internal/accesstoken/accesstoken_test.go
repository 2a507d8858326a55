package accesstoken_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/accesstoken"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// service is a connection service with tokens of a given lifetime. It is safe for concurrent use.
type service struct {
	identityv1.ConnectionServiceClient

	mu       sync.Mutex
	life     time.Duration // 0 if the expiry is not known
	expires  time.Time
	current  int64
	requests int
	err      error
	// takes is how long a request takes.
	takes time.Duration
	// behind is the difference between the clocks of the gateway and of the service. isOld is true for an earlier
	// version of the service, which sends only the time of the expiry. isStuck is true if refused tokens are not
	// replaced.
	behind         time.Duration
	isOld, isStuck bool
	// accepted is the generation that the server has accepted, as the last request says.
	accepted int64
}

func (s *service) GetAccessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest, _ ...grpc.CallOption) (*identityv1.GetAccessTokenResponse, error) {
	select {
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-time.After(s.takes):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.accepted = req.GetAcceptedGeneration()
	if s.err != nil {
		return nil, s.err
	}
	if s.current == 0 || req.GetRefusedGeneration() == s.current && !s.isStuck || s.life != 0 && !time.Now().Before(s.expires) {
		s.current, s.expires = s.current+1, time.Now().Add(s.life)
	}
	resp := &identityv1.GetAccessTokenResponse{AccessToken: fmt.Sprint("token ", s.current), Generation: s.current}
	if s.life != 0 {
		resp.Expires = timestamppb.New(s.expires.Add(-s.behind))
	}
	if s.life != 0 && !s.isOld {
		resp.ExpiresIn = durationpb.New(time.Until(s.expires))
	}
	return resp, nil
}

// answer sets the error of later requests. isStuck is true if refused tokens are not replaced.
func (s *service) answer(err error, isStuck bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.isStuck = err, isStuck
}

// count returns how many requests the service has received.
func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// lastAccepted returns the generation that the server has accepted, as the last request says.
func (s *service) lastAccepted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Concurrent calls share one request. The token is used for 30 s, or until shortly before its expiry, also if the
// clocks of the gateway and of the identity service differ.
func TestToken_IsUsedForSomeTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		life, used, behind time.Duration
		isOld              bool
	}{
		"unknown expiry": {0, 30 * time.Second, 0, false}, "an hour": {time.Hour, 30 * time.Second, 0, false}, "36 s": {36 * time.Second, 27 * time.Second, 0, false},
		"8 s": {8 * time.Second, 6 * time.Second, 0, false}, "an earlier version": {36 * time.Second, 27 * time.Second, 0, true},
		"the gateway's clock is ahead":  {36 * time.Second, 27 * time.Second, time.Hour, false},
		"the gateway's clock is behind": {36 * time.Second, 27 * time.Second, -time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := &service{life: c.life, behind: c.behind, isOld: c.isOld, takes: time.Millisecond}
				s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
				use := func() {
					var calls sync.WaitGroup
					for range 20 {
						calls.Go(func() {
							if got, err := s.Token(t.Context()); err != nil || got.Text == "" {
								t.Errorf("%+v, %v", got, err)
							}
						})
					}
					calls.Wait()
				}
				use()
				time.Sleep(c.used - 100*time.Millisecond)
				use()
				if from.count() != 1 {
					t.Errorf("there were %d requests before the token was used for %v", from.count(), c.used)
				}
				time.Sleep(200 * time.Millisecond)
				use()
				if from.count() != 2 {
					t.Errorf("there were %d requests after the token was used for %v", from.count(), c.used)
				}
			})
		})
	}
}

// After an error there is a pause of a second, in which calls get the same error.
func TestToken_ErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for text, err := range map[string]error{
		"try again later": status.Error(codes.Unavailable, "away"), "same configuration": status.Error(codes.NotFound, "unknown"),
	} {
		synctest.Test(t, func(t *testing.T) {
			from := &service{err: err}
			s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
			for range 10 {
				_, err := s.Token(t.Context())
				if cause := upstream.CauseOf(err); cause == nil || !strings.Contains(cause.Text, text) {
					t.Errorf("the error is %v with the cause %+v", err, cause)
				}
			}
			if from.count() != 1 {
				t.Errorf("there were %d requests in a second", from.count())
			}
			from.answer(nil, false)
			time.Sleep(time.Second)
			if got, err := s.Token(t.Context()); err != nil || got.Text == "" {
				t.Errorf("after the pause: %+v, %v", got, err)
			}
		})
	}
}

// A refused token is replaced once for all requests that have sent it.
func TestReplace_ConcurrentRequestsShareTheNewToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &service{takes: time.Millisecond}
		s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
		first, err := s.Token(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if next, isNew, err := s.Replace(t.Context(), first); err != nil || !isNew || next.Text != "token 2" {
					t.Errorf("%+v, %v, %v", next, isNew, err)
				}
			})
		}
		calls.Wait()
		if next, isNew, err := s.Replace(t.Context(), first); err != nil || !isNew || next.Text != "token 2" || from.count() != 2 {
			t.Errorf("a later request: %+v, %v, %v after %d requests", next, isNew, err, from.count())
		}
	})
}

// A refused token that can't be replaced causes one request in 10 s, also if the identity service is unavailable.
func TestReplace_UnsuccessfulRequestsHaveAPause(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"no other token": nil, "unavailable": status.Error(codes.Unavailable, "away")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				from := &service{isStuck: true}
				s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
				first, failed := s.Token(t.Context())
				if failed != nil {
					t.Fatal(failed)
				}
				from.answer(err, true)
				for _, want := range []int{2, 3} {
					for range 20 {
						if next, isNew, _ := s.Replace(t.Context(), first); isNew {
							t.Errorf("the token was replaced with %+v", next)
						}
					}
					if from.count() != want {
						t.Errorf("there were %d requests instead of %d", from.count(), want)
					}
					time.Sleep(10 * time.Second)
				}
				from.answer(nil, false)
				if next, isNew, err := s.Replace(t.Context(), first); err != nil || !isNew || next.Text != "token 2" {
					t.Errorf("after the pause: %+v, %v, %v", next, isNew, err)
				}
			})
		})
	}
}

// The identity service learns whether the server has accepted a token since the server has refused it.
func TestAccept_IsReportedWithTheNextRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &service{isStuck: true}
		s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
		for _, c := range []struct {
			answer func(accesstoken.Token)
			want   int64
		}{
			{func(accesstoken.Token) {}, 0}, {s.Accept, 1}, {func(token accesstoken.Token) { s.Report(t.Context(), token) }, 0}, {s.Accept, 1},
		} {
			token, err := s.Token(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.answer(token)
			time.Sleep(31 * time.Second)
			if _, err := s.Token(t.Context()); err != nil {
				t.Fatal(err)
			}
			if from.lastAccepted() != c.want {
				t.Errorf("the request says that the server has accepted generation %d instead of %d", from.lastAccepted(), c.want)
			}
		}
	})
}

// A caller that ends does not end the request for the others.
func TestToken_CallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		from := &service{takes: 10 * time.Second}
		s := accesstoken.New(from, "wiki", "https://wiki.example.com/mcp", accesstoken.Account{})
		leaving, leave := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := s.Token(leaving); !errors.Is(err, context.Canceled) {
				t.Errorf("the caller that leaves gets %v", err)
			}
		})
		synctest.Wait()
		calls.Go(func() {
			if got, err := s.Token(t.Context()); err != nil || got.Text != "token 1" {
				t.Errorf("the other caller gets %+v, %v", got, err)
			}
		})
		leave()
		calls.Wait()
	})
}
