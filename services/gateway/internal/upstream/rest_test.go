package upstream_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// overHTTP is a scripted transport to one server for all.
type overHTTP struct{ *scripted }

func (overHTTP) Kind() string { return "http" }

// sessions are two callers' with one server.
func sessions(t *testing.T, over upstream.Transport) (s *upstream.Server, ours, theirs *upstream.Session) {
	t.Helper()
	s = newServer(t, over)
	for _, to := range []struct {
		who  principal.Key
		sess **upstream.Session
	}{{ana, &ours}, {principal.Key{Tenant: "default", Subject: "ben"}, &theirs}} {
		sess, _, err := s.Open(t.Context(), to.who, upstream.ListTools("", nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		*to.sess = sess
	}
	return s, ours, theirs
}

func ask(t *testing.T, sess *upstream.Session) error {
	t.Helper()
	_, err := sess.Ask(t.Context(), upstream.ListTools("", nil), nil, nil)
	return err
}

// A server that is not reached many times in a row rests for all, and one request says when it is
// back.
func TestAServerRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &scripted{answer: well}
		s, ours, theirs := sessions(t, overHTTP{f})
		sent := 0
		f.answer = func() (upstream.Answer, error) {
			sent++
			return upstream.Answer{}, fmt.Errorf("%w: refused", upstream.ErrNeverSent)
		}
		for range 10 {
			if err := ask(t, ours); errors.Is(err, upstream.ErrRests) || !errors.Is(err, upstream.ErrNeverSent) {
				t.Fatalf("before it rests: %v", err)
			}
		}
		if until := s.RestsUntil(); time.Until(until) != upstream.Rest || s.LastError() != upstream.ErrNeverSent.Error() {
			t.Errorf("it rests until %v, after %q", until, s.LastError())
		}
		for _, sess := range []*upstream.Session{ours, theirs} {
			if err := ask(t, sess); !errors.Is(err, upstream.ErrRests) || !errors.Is(err, upstream.ErrNeverSent) || upstream.Why(upstream.Answer{}, err) != upstream.ErrRests.Error() {
				t.Errorf("while it rests: %v", err)
			}
		}
		if _, _, err := s.Open(t.Context(), ana, upstream.ListTools("", nil), nil); !errors.Is(err, upstream.ErrRests) || sent != 10 {
			t.Errorf("opening a session: %v; it was sent %d requests", err, sent)
		}
		time.Sleep(upstream.Rest + time.Millisecond)
		if err := ask(t, theirs); errors.Is(err, upstream.ErrRests) || sent != 11 {
			t.Errorf("it is not tried again: %v", err)
		}
		if err := ask(t, ours); !errors.Is(err, upstream.ErrRests) {
			t.Errorf("tried in vain it does not rest again: %v", err)
		}
		time.Sleep(upstream.Rest + time.Millisecond)
		f.answer = well
		for range 3 {
			if err := ask(t, ours); err != nil || !s.RestsUntil().IsZero() {
				t.Errorf("once it is back: %v, until %v", err, s.RestsUntil())
			}
		}
	})
}

// X1: who asks what a server does not answer in time takes it from nobody else; neither does who
// has his own requests end, or gets answers that can't be used.
func TestX1ACallerTakesAServerFromNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &scripted{answer: well}
		s, ours, theirs := sessions(t, overHTTP{f})
		for _, class := range []error{upstream.ErrNoAnswer, upstream.ErrCancelled, upstream.ErrTimeout} {
			f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, class }
			for range 20 {
				err := ask(t, ours)
				if rests := errors.Is(err, upstream.ErrRests); rests && class != upstream.ErrTimeout { //nolint:errorlint // it is the very value
					t.Fatalf("%v: %v", class, err)
				}
			}
		}
		f.answer = well
		if err := ask(t, ours); !errors.Is(err, upstream.ErrRests) || !s.RestsUntil().IsZero() {
			t.Errorf("for who was not answered: %v, for all until %v", err, s.RestsUntil())
		}
		if err := ask(t, theirs); err != nil {
			t.Errorf("for another: %v", err)
		}
		time.Sleep(upstream.Rest + time.Millisecond)
		if err := ask(t, ours); err != nil {
			t.Errorf("a moment later: %v", err)
		}
	})
}

// Processes that are started for single callers rest for nobody else.
func TestProcessesRestForNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &scripted{answer: well}
		_, ours, theirs := sessions(t, f)
		f.answer = func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }
		for range 100 {
			if err := ask(t, ours); errors.Is(err, upstream.ErrRests) {
				t.Fatal(err)
			}
		}
		f.answer = well
		if err := ask(t, theirs); err != nil {
			t.Error(err)
		}
	})
}

// No more requests wait for one server than it may have, and those that do go on.
func TestAServerHasOnlySoManyRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &scripted{answer: well}
		s, ours, _ := sessions(t, overHTTP{f})
		hold := make(chan struct{})
		f.answer = func() (upstream.Answer, error) {
			<-hold
			return well()
		}
		var all sync.WaitGroup
		for range 1024 {
			all.Go(func() {
				if err := ask(t, ours); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := ask(t, ours); !errors.Is(err, upstream.ErrBusy) || !errors.Is(err, upstream.ErrNeverSent) || s.LastError() != "" {
			t.Errorf("one more: %v; %q", err, s.LastError())
		}
		close(hold)
		all.Wait()
		if err := ask(t, ours); err != nil || s.InFlight() != 0 {
			t.Errorf("afterwards: %v, %d in flight", err, s.InFlight())
		}
	})
}
