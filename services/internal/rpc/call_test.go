package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// canary is a string that the server must never send.
const canary = "canary-7f3a"

// probeOf returns a probe service. Its unary method returns the result of the function do. Its streaming method reads
// one message and then returns the result of do.
func probeOf(do func(ctx context.Context, name string) error) probe {
	return probe{
		unary: func(ctx context.Context, req *identityv1.RevokeTokenRequest) (string, error) {
			return "answer", do(ctx, req.GetName())
		},
		stream: func(ss grpc.BidiStreamingServer[identityv1.RevokeTokenRequest, wrapperspb.StringValue]) error {
			for {
				req, err := ss.Recv()
				if err != nil {
					return err
				}
				if err := do(ss.Context(), req.GetName()); err != nil {
					return err
				}
			}
		},
	}
}

// checkBoth calls the unary method and the streaming method, and passes the error of each call to check.
func checkBoth(t *testing.T, s *testServer, check func(t *testing.T, err error)) {
	t.Helper()
	for _, w := range s.paths() {
		for kind, call := range map[string]func(context.Context, grpc.ClientConnInterface) (string, error){
			"unary":  func(ctx context.Context, c grpc.ClientConnInterface) (string, error) { return ask(ctx, c, methodUnary) },
			"stream": func(ctx context.Context, c grpc.ClientConnInterface) (string, error) { return open(ctx, c, "name") },
		} {
			t.Run(w.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				text, err := call(timeoutContext(t), w.as(t, gateway, false))
				if text != "" {
					t.Errorf("an answer was received with the error: %q", text)
				}
				check(t, err)
			})
		}
	}
}

func TestServer_SendsErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("no such thing")
	tests := []struct {
		name    string
		err     error
		code    codes.Code
		reason  string
		message string
		logged  bool
	}{
		{"one that callers act on", &rpc.Error{Code: codes.NotFound, Reason: "GONE", Err: cause}, codes.NotFound, "GONE", "no such thing", false},
		{"one that is wrapped", fmt.Errorf("look it up: %w", &rpc.Error{Code: codes.NotFound, Reason: "GONE", Err: cause}), codes.NotFound, "GONE", "no such thing", false},
		{"one without a code, which is no success", &rpc.Error{Reason: "GONE", Err: cause}, codes.Internal, "GONE", "no such thing", false},
		{"one without a cause", &rpc.Error{Code: codes.NotFound, Reason: "GONE"}, codes.NotFound, "GONE", "GONE", false},
		{"a status", status.Error(codes.AlreadyExists, "it is there"), codes.AlreadyExists, "", "it is there", false},
		{"a peer's status, wrapped", fmt.Errorf("ask: %w", status.Error(codes.Unauthenticated, canary)), codes.Internal, "", "internal error", true},
		{"anything else", errors.New(canary), codes.Internal, "", "internal error", true},
		{"a deadline", fmt.Errorf("wait for %s: %w", canary, context.DeadlineExceeded), codes.DeadlineExceeded, "", "the deadline passed", false},
		{"a cancellation", fmt.Errorf("wait for %s: %w", canary, context.Canceled), codes.Canceled, "", "the call was cancelled", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newTestServer(t, probeOf(func(context.Context, string) error { return tt.err }).register(t))
			checkBoth(t, s, func(t *testing.T, err error) {
				checkAnswer(t, "", err, "", tt.code, tt.reason)
				if got := status.Convert(err).Message(); got != tt.message {
					t.Errorf("the message is %q, want %q", got, tt.message)
				}
			})
			t.Cleanup(func() {
				if logged := strings.Contains(s.log.String(), "rpc failed"); logged != tt.logged {
					t.Errorf("logged is %t, want %t:\n%s", logged, tt.logged, s.log.String())
				}
			})
		})
	}
}

func TestServer_SendsRetryInfo(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, probeOf(func(context.Context, string) error {
		return &rpc.Error{Code: codes.ResourceExhausted, Reason: "FULL", RetryAfter: 1500 * time.Millisecond, Err: errors.New("full")}
	}).register(t))
	checkBoth(t, s, func(t *testing.T, err error) {
		for _, detail := range status.Convert(err).Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().AsDuration() == 1500*time.Millisecond {
				return
			}
		}
		t.Errorf("no retry information in %v", status.Convert(err).Details())
	})
}

func TestServer_PanicFailsOnlyItsCall(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{"a text": canary, "an error": errors.New(canary), "nothing": nil, "a caller's error": &rpc.Error{Reason: canary}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestServer(t, probeOf(func(context.Context, string) error { panic(value) }).register(t))
			checkBoth(t, s, func(t *testing.T, err error) {
				if st := status.Convert(err); st.Code() != codes.Internal || st.Message() != "internal error" || len(st.Details()) > 0 {
					t.Errorf("got %v", err)
				}
			})
			t.Cleanup(func() {
				if n := strings.Count(s.log.String(), "rpc panicked"); n != 6 {
					t.Errorf("%d panics were logged, want 6:\n%s", n, s.log.String())
				}
			})
		})
	}
}

func TestServer_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	s := newTestServer(t, probeOf(func(_ context.Context, name string) error {
		if name == "last" {
			return status.Error(codes.AlreadyExists, "read to the end")
		}
		ran.Add(1)
		return nil
	}).register(t))
	for _, w := range s.paths() {
		t.Run(w.name, func(t *testing.T) {
			conn := w.as(t, gateway, false)
			ran.Store(0)
			got, err := askFor(timeoutContext(t), conn, methodUnary, "not a name")
			checkAnswer(t, got, err, "", codes.InvalidArgument, "INVALID_REQUEST")
			if ran.Load() != 0 {
				t.Error("the handler ran")
			}
			if !strings.Contains(err.Error(), "name") {
				t.Errorf("the message names no field: %v", err)
			}
			got, err = open(timeoutContext(t), conn, "one", "not a name", "last")
			checkAnswer(t, got, err, "", codes.InvalidArgument, "INVALID_REQUEST")
			if ran.Load() != 1 {
				t.Errorf("the handler read %d messages, want the one before the broken one", ran.Load())
			}
			got, err = open(timeoutContext(t), conn, "one", "two", "last")
			checkAnswer(t, got, err, "", codes.AlreadyExists, "")
			// A caller without access must not learn whether its request satisfies the constraints of the contract.
			got, err = askFor(timeoutContext(t), w.as(t, ratelimit, false), methodUnary, "not a name")
			checkAnswer(t, got, err, "", codes.PermissionDenied, "CALLER_REFUSED")
		})
	}
}

func TestServer_ReservesPartOfDeadline(t *testing.T) {
	t.Parallel()
	left := make(chan time.Duration, 1)
	s := newTestServer(t, probeOf(func(ctx context.Context, _ string) error {
		end, ok := ctx.Deadline()
		if !ok {
			return errors.New("no deadline")
		}
		select {
		case left <- time.Until(end):
		case <-ctx.Done(): // the method was called twice
		}
		return nil
	}).register(t))
	for i, w := range s.paths() {
		latest := []time.Duration{math.MaxInt64, 5 * time.Minute, 5 * time.Minute}[i] // inside the process, the client limits the duration of its calls
		t.Run(w.name, func(t *testing.T) {
			conn := w.as(t, gateway, false)
			if _, err := ask(timeoutContext(t), conn, methodUnary); err != nil { // the first call opens the connection
				t.Fatal(err)
			}
			<-left
			for given, most := range map[time.Duration]time.Duration{0: testTimeout, time.Minute: time.Minute - 20*time.Millisecond, 24 * 365 * time.Hour: latest} {
				ctx := context.WithoutCancel(t.Context())
				if given > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, given)
					defer cancel()
				}
				if _, err := ask(ctx, conn, methodUnary); err != nil {
					t.Fatalf("with %v: %v", given, err)
				}
				if got := <-left; got > most || got <= 0 {
					t.Errorf("of %v the handler has %v, want at most %v", given, got, most)
				}
			}
		})
	}
	wait, _ := newWaiting(t)
	for _, w := range wait.paths() {
		t.Run(w.name+"/a deadline passes", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := ask(ctx, w.as(t, gateway, false), methodUnary)
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
		})
		t.Run(w.name+"/a deadline that has passed", func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
			defer cancel()
			_, err := ask(ctx, w.as(t, gateway, false), methodUnary)
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
		})
	}
}

// newWaiting returns a test server whose methods run until their context is done. The returned number is the number of
// methods that are running.
func newWaiting(t *testing.T) (*testServer, *atomic.Int64) {
	t.Helper()
	running := new(atomic.Int64)
	return newTestServer(t, probeOf(func(ctx context.Context, _ string) error {
		running.Add(1)
		defer running.Add(-1)
		<-ctx.Done()
		return ctx.Err()
	}).register(t)), running
}

func TestServer_CancelledCallEndsHandler(t *testing.T) {
	t.Parallel()
	s, running := newWaiting(t)
	for _, w := range s.paths() {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := ask(ctx, w.as(t, gateway, false), methodUnary)
				done <- err
			}()
			waitFor(t, func() bool { return running.Load() == 1 })
			cancel()
			if err := <-done; status.Code(err) != codes.Canceled {
				t.Errorf("got %v", err)
			}
			waitFor(t, func() bool { return running.Load() == 0 })
		})
	}
}

func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	waitForWithin(t, testTimeout, holds)
}

func waitForWithin(t *testing.T, within time.Duration, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the condition did not become true in time")
		}
	}
}

// The server does not see the values in a client's context, even in the same process. Only metadata is sent.
func TestServer_DoesNotSeeValuesOfClientContext(t *testing.T) {
	t.Parallel()
	type key struct{}
	s := newTestServer(t, probeOf(func(ctx context.Context, _ string) error {
		md, _ := metadata.FromIncomingContext(ctx)
		_, outgoing := metadata.FromOutgoingContext(ctx)
		switch {
		case ctx.Value(key{}) != nil, authn.PrincipalOf(ctx) != nil, outgoing:
			return errors.New("the client's values are there")
		case len(md.Get("x-key")) != 1:
			return errors.New("the metadata is not there")
		}
		return status.Error(codes.AlreadyExists, "as it should be")
	}).register(t))
	for _, w := range s.paths() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			ctx := context.WithValue(metadata.AppendToOutgoingContext(timeoutContext(t), "x-key", "x"), key{}, "x")
			ctx = authn.WithCaller(authn.OnBehalfOf(ctx, ana()), &authn.Caller{Role: policy})
			_, err := ask(ctx, w.as(t, gateway, true), methodUnary)
			checkAnswer(t, "", err, "", codes.AlreadyExists, "")
			_, err = open(ctx, w.as(t, gateway, true), "name")
			checkAnswer(t, "", err, "", codes.AlreadyExists, "")
		})
	}
}

func TestServer_UnknownMethodIsUnimplemented(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, whoami().register(t))
	for _, w := range s.paths() {
		for _, method := range []string{"/" + probeService + "/Nothing", "/sluice.nothing.v1.Service/Unary", "nothing", ""} {
			if _, err := ask(timeoutContext(t), w.as(t, gateway, true), method); status.Code(err) != codes.Unimplemented && status.Code(err) != codes.Internal {
				t.Errorf("%s, %q: %v", w.name, method, err)
			}
		}
	}
}

// A client reuses the message of a first response for a second response. The message then contains only the second
// response.
func TestConn_AnswerReplacesMessage(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, probe{unary: func(context.Context, *identityv1.RevokeTokenRequest) (string, error) { return "", nil }}.register(t))
	for _, w := range s.paths() {
		out := wrapperspb.String("allowed")
		err := w.as(t, gateway, false).Invoke(timeoutContext(t), methodUnary, &identityv1.RevokeTokenRequest{Name: "name"}, out)
		if err != nil || out.GetValue() != "" {
			t.Errorf("%s: %q, %v", w.name, out.GetValue(), err)
		}
	}
}
