package authn_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// source is an identity service that the test controls. Each call to WatchTokens receives the next stream of messages.
// After the last stream was used, later calls receive it again.
type source struct {
	identityv1.IdentityServiceClient
	mu      sync.Mutex
	streams []chan *identityv1.WatchTokensResponse
	opened  int
	// uses receives the reported uses of tokens.
	uses chan *identityv1.ReportTokenUseRequest
}

func (s *source) ReportTokenUse(_ context.Context, req *identityv1.ReportTokenUseRequest, _ ...grpc.CallOption) (*identityv1.ReportTokenUseResponse, error) {
	if s.uses == nil {
		return nil, errors.New("the source is absent")
	}
	s.uses <- req
	return new(identityv1.ReportTokenUseResponse), nil
}

func (*source) AcknowledgeTokens(context.Context, *identityv1.AcknowledgeTokensRequest, ...grpc.CallOption) (*identityv1.AcknowledgeTokensResponse, error) {
	return new(identityv1.AcknowledgeTokensResponse), nil
}

func (s *source) WatchTokens(ctx context.Context, _ *identityv1.WatchTokensRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[identityv1.WatchTokensResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) == 0 {
		return nil, errors.New("the source is absent")
	}
	at := min(s.opened, len(s.streams)-1)
	s.opened++
	return &stream{ctx: ctx, messages: s.streams[at]}, nil
}

type stream struct {
	grpc.ClientStream
	ctx      context.Context //nolint:containedctx // a stream lasts as long as its context
	messages chan *identityv1.WatchTokensResponse
}

func (s *stream) Recv() (*identityv1.WatchTokensResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case m, ok := <-s.messages:
		if !ok {
			return nil, errors.New("the stream broke")
		}
		return m, nil
	}
}

// watch runs WatchTokens with the streams in a synctest bubble, and stops it when the test ends.
func watch(t *testing.T, streams ...chan *identityv1.WatchTokensResponse) (*authn.Tokens, *strings.Builder) {
	t.Helper()
	tokens, out := new(authn.Tokens), new(strings.Builder)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	log := slog.New(slog.NewTextHandler(out, nil))
	go func() { done <- authn.WatchTokens(ctx, &source{streams: streams}, tokens, log, func() {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return tokens, out
}

func set(records ...*identityv1.TokenRecord) *identityv1.WatchTokensResponse {
	return &identityv1.WatchTokensResponse{Set: &identityv1.TokenSet{Tokens: records}}
}

func beat() *identityv1.WatchTokensResponse { return &identityv1.WatchTokensResponse{} }

// subjectOf returns the subject of the token with the given secret, or "" if the token is refused.
func subjectOf(tokens *authn.Tokens, secret string) string {
	p, err := tokens.Lookup(secret)
	if err != nil {
		return ""
	}
	return p.GetSubject()
}

func TestWatchTokens_AppliesEachSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		messages := make(chan *identityv1.WatchTokensResponse)
		tokens, _ := watch(t, messages)
		if subjectOf(tokens, anasToken) != "" {
			t.Error("a token is known before anything was heard")
		}
		messages <- set(record("ana", anasToken))
		for range 10 {
			synctest.Wait()
			if subjectOf(tokens, anasToken) != "ana" {
				t.Fatal("the token is not known")
			}
			time.Sleep(900 * time.Millisecond)
			messages <- beat()
		}
		messages <- set(record("bob", bobsToken))
		synctest.Wait()
		if subjectOf(tokens, anasToken) != "" || subjectOf(tokens, bobsToken) != "bob" {
			t.Error("a removed token is still accepted, or a new token is not")
		}
	})
}

func TestWatchTokens_SetIsStaleWhenSourceIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		silent, next := make(chan *identityv1.WatchTokensResponse), make(chan *identityv1.WatchTokensResponse)
		tokens, out := watch(t, silent, next)
		silent <- set(record("ana", anasToken))
		time.Sleep(time.Second + time.Millisecond)
		if subjectOf(tokens, anasToken) != "" {
			t.Error("a token counts though its source has been silent for more than 1 s")
		}
		next <- set(record("ana", anasToken)) // the watch has closed the silent stream
		synctest.Wait()
		if subjectOf(tokens, anasToken) != "ana" {
			t.Error("the source is available again, but the token is not accepted")
		}
		if strings.Count(out.String(), "the identity role is unavailable") != 1 || strings.Count(out.String(), "known again") != 1 {
			t.Errorf("the log is\n%s", out)
		}
	})
}

// If the service sends nothing, another replica of it may have the tokens. If it is unavailable, gRPC connects again
// itself.
func TestWatchTokens_ReconnectsWhenSourceIsSilent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		closed bool
		want   bool
	}{{name: "silent", want: true}, {name: "closed", closed: true}} {
		synctest.Test(t, func(t *testing.T) {
			messages := make(chan *identityv1.WatchTokensResponse)
			if c.closed {
				close(messages)
			}
			ctx, stop := context.WithCancel(t.Context())
			var reconnects atomic.Int32
			done := make(chan error, 1)
			go func() {
				done <- authn.WatchTokens(ctx, &source{streams: []chan *identityv1.WatchTokensResponse{messages}}, new(authn.Tokens), slog.New(slog.DiscardHandler), func() { reconnects.Add(1) })
			}()
			time.Sleep(1900 * time.Millisecond)
			if n := reconnects.Load(); n != 0 {
				t.Errorf("%s: %d reconnects after 1.9 s", c.name, n)
			}
			time.Sleep(time.Second)
			if n := reconnects.Load(); (n > 0) != c.want {
				t.Errorf("%s: %d reconnects after 2.9 s", c.name, n)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A message without a set confirms only a set that was received on the same stream. Before the first set of a stream,
// such a message must not confirm the set from an earlier stream.
func TestWatchTokens_BeatConfirmsOnlyItsOwnStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, later := make(chan *identityv1.WatchTokensResponse), make(chan *identityv1.WatchTokensResponse)
		tokens, _ := watch(t, first, later)
		first <- set(record("ana", anasToken))
		close(first)
		time.Sleep(10 * time.Second)
		later <- beat()
		synctest.Wait()
		if subjectOf(tokens, anasToken) != "" {
			t.Error("a set of 10 s ago counts after a beat")
		}
	})
}

func TestWatchTokens_DoesNotConfirmBrokenSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := make(chan *identityv1.WatchTokensResponse), make(chan *identityv1.WatchTokensResponse)
		tokens, _ := watch(t, first, second)
		first <- set(record("ana", anasToken))
		first <- set(record("ana", anasToken), record("bob", anasToken))
		time.Sleep(1100 * time.Millisecond)
		if subjectOf(tokens, anasToken) != "" {
			t.Error("the old set is still accepted although its source has a new one")
		}
	})
}

func TestWatchTokens_RetriesWhenSourceIsAbsent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, out := watch(t)
		time.Sleep(time.Minute)
		synctest.Wait() // the next watch may begin at this instant
		if subjectOf(tokens, anasToken) != "" {
			t.Error("a token is known without a source")
		}
		if n := strings.Count(out.String(), "level=WARN"); n != 1 {
			t.Errorf("the absence was logged %d times:\n%s", n, out)
		}
	})
}

// timeCheck returns the duration of the check of a token, and whether the check accepted the token. If the set does not
// contain the token, there is nothing to check.
func timeCheck(ctx context.Context, tokens *authn.Tokens, secret string) (time.Duration, bool) {
	began := time.Now()
	token, err := tokens.Bearer(secret)
	if token != nil {
		err = token.Check(ctx)
	}
	return time.Since(began), err == nil
}

func TestCheck_WaitsOnlyForBusySource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		messages := make(chan *identityv1.WatchTokensResponse)
		tokens, _ := watch(t, messages)
		messages <- set(record("ana", anasToken))
		synctest.Wait()
		wants := func(when string, ctx context.Context, secret string, took time.Duration, counts bool) {
			t.Helper()
			if gotTook, got := timeCheck(ctx, tokens, secret); gotTook != took || got != counts {
				t.Errorf("%s: the check took %v, accepted is %t; want %v, %t", when, gotTook, got, took, counts)
			}
		}
		wants("the set is fresh", t.Context(), anasToken, 0, true)
		time.Sleep(1200 * time.Millisecond)
		wants("the set is stale, the token was never known", t.Context(), bobsToken, 0, false)
		ended, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		wants("the caller goes", ended, anasToken, 100*time.Millisecond, false)
		go func() {
			time.Sleep(300 * time.Millisecond)
			messages <- beat() // arrives late, so the stream is opened again 200 ms later
			messages <- set(record("ana", anasToken))
		}()
		wants("the set is confirmed after a while", t.Context(), anasToken, 500*time.Millisecond, true)
		time.Sleep(1500 * time.Millisecond)
		wants("the source stays silent", t.Context(), anasToken, 500*time.Millisecond, false)
		wants("the source is away", t.Context(), anasToken, 0, false)
	})
}
