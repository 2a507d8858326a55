package upstream_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// errUnreached is the error for a request for which there was no connection.
var errUnreached = fmt.Errorf("%w: %w: refused", upstream.ErrNeverSent, upstream.ErrUnreached)

func ask(t *testing.T, sess *upstream.Session) error {
	t.Helper()
	_, err := sess.SendRequest(t.Context(), upstream.ListTools("", nil), nil, nil)
	return err
}

// After many consecutive failed connections, no requests are sent to a server. When the pause is over, requests are
// sent again.
func TestCircuitBreaker_PausesUnreachableServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, sent := new(scripted), 0
		s, sess := opened(t, f)
		f.answer = func() (upstream.Answer, error) {
			sent++
			return upstream.Answer{}, errUnreached
		}
		for range 10 {
			if err := ask(t, sess); errors.Is(err, upstream.ErrCircuitOpen) || !errors.Is(err, upstream.ErrNeverSent) {
				t.Fatalf("before it rests: %v", err)
			}
		}
		if until := s.CircuitOpenUntil(); time.Until(until) != upstream.OpenDuration || s.LastError() != upstream.ErrNeverSent.Error() {
			t.Errorf("it rests until %v, after %q", until, s.LastError())
		}
		if err := ask(t, sess); !errors.Is(err, upstream.ErrCircuitOpen) || !errors.Is(err, upstream.ErrNeverSent) || upstream.PublicReason(upstream.Answer{}, err) != upstream.ErrCircuitOpen.Error() {
			t.Errorf("while it rests: %v", err)
		}
		if _, _, err := s.Open(t.Context(), ana, upstream.ListTools("", nil), nil); !errors.Is(err, upstream.ErrCircuitOpen) || sent != 10 {
			t.Errorf("opening a session: %v; it was sent %d requests", err, sent)
		}
		time.Sleep(upstream.OpenDuration)
		if err := ask(t, sess); errors.Is(err, upstream.ErrCircuitOpen) || sent != 11 {
			t.Errorf("it is not tried again: %v", err)
		}
		if err := ask(t, sess); !errors.Is(err, upstream.ErrCircuitOpen) {
			t.Errorf("tried in vain it does not rest again: %v", err)
		}
		time.Sleep(upstream.OpenDuration)
		f.answer = well
		for range 3 {
			if err := ask(t, sess); err != nil || !s.CircuitOpenUntil().IsZero() {
				t.Errorf("once it is back: %v, until %v", err, s.CircuitOpenUntil())
			}
		}
		f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, errUnreached }
		for range 9 {
			if err := ask(t, sess); errors.Is(err, upstream.ErrCircuitOpen) {
				t.Error("what was before counts")
			}
		}
	})
}

// Case X1. The content of a caller's request cannot cause a pause, because only failed connections count as failures.
// Any sign that the server is reachable resets the count of failures. After a pause, a slow request does not delay
// other requests.
func TestCircuitBreaker_CallerCannotOpenIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := new(scripted)
		s, sess := opened(t, f)
		for _, class := range []error{upstream.ErrNoAnswer, upstream.ErrCancelled, upstream.ErrTimeout, upstream.ErrNeverSent, upstream.ErrRevision} {
			f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, class }
			for range 20 {
				if err := ask(t, sess); errors.Is(err, upstream.ErrCircuitOpen) || !s.CircuitOpenUntil().IsZero() {
					t.Fatalf("after %v it rests: %v", class, err)
				}
			}
		}
		for _, reached := range []error{nil, upstream.ErrNoAnswer, upstream.ErrTimeout} {
			for range 30 {
				for n := range 10 {
					f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, errUnreached }
					if n == 9 {
						f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, reached }
					}
					if err := ask(t, sess); errors.Is(err, upstream.ErrCircuitOpen) {
						t.Fatalf("it rests although it is reached now and then: %v", err)
					}
				}
			}
		}
		f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, errUnreached }
		for range 10 {
			_ = ask(t, sess) // the last request starts the pause
		}
		time.Sleep(upstream.OpenDuration)
		hold, done := make(chan struct{}), make(chan error, 1)
		f.answer = func() (upstream.Answer, error) {
			<-hold
			return well()
		}
		go func() { done <- ask(t, sess) }()
		synctest.Wait()
		f.answer = well
		if err := ask(t, sess); err != nil {
			t.Errorf("while the first request behind a rest takes long: %v", err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The number of requests in flight per server is limited. A refused request does not affect the requests in flight.
func TestCircuitBreaker_LimitsRequestsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := new(scripted)
		s, sess := opened(t, f)
		hold := make(chan struct{})
		f.answer = func() (upstream.Answer, error) {
			<-hold
			return well()
		}
		var all sync.WaitGroup
		for range 4096 {
			all.Go(func() {
				if err := ask(t, sess); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := ask(t, sess); !errors.Is(err, upstream.ErrBusy) || !errors.Is(err, upstream.ErrNeverSent) || s.LastError() != "" {
			t.Errorf("one more: %v; %q", err, s.LastError())
		}
		close(hold)
		all.Wait()
		if err := ask(t, sess); err != nil || s.InFlight() != 0 {
			t.Errorf("afterwards: %v, %d in flight", err, s.InFlight())
		}
	})
}
