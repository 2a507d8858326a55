package session_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// A session with an open stream is not idle. If the session's principal opens too many sessions, the session can still
// be closed, and its stream ends.
func TestListen_SessionIsNotIdleWhileItsClientListens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Minute, 2)
		ctx, stop := context.WithCancel(t.Context())
		swept := make(chan error, 1)
		go func() { swept <- s.Run(ctx) }()
		first, _ := add(t, s, key("ana"))
		add(t, s, key("ana"))
		_, heard, done, err := s.Listen(t.Context(), first.ID, first.Key, false)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s.Len() != 1 || heard.Err() != nil {
			t.Fatalf("%d sessions are open, and the stream ended with %v", s.Len(), heard.Err())
		}
		done()
		time.Sleep(50 * time.Second)
		if s.Len() != 1 {
			t.Fatal("the session is closed before its client could reconnect")
		}
		_, heard, done, err = s.Listen(t.Context(), first.ID, first.Key, false)
		if err != nil {
			t.Fatal(err)
		}
		add(t, s, key("ana"))
		last, _ := add(t, s, key("ana"))
		if heard.Err() == nil {
			t.Error("the session has ended, and its stream has not")
		}
		done()
		if _, _, _, err := s.Listen(t.Context(), first.ID, first.Key, false); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("listening to a closed session: %v", err)
		}
		if _, _, _, err := s.Listen(t.Context(), last.ID, key("ben"), false); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("listening to another principal's session: %v", err)
		}
		stop()
		if err := <-swept; err != nil {
			t.Error(err)
		}
	})
}

// A session's newest stream replaces an older stream. The end of the older stream does not affect the newest stream.
func TestListen_NewestStreamReplacesOlder(t *testing.T) {
	t.Parallel()
	s := newStore(t, time.Minute, 2)
	sess, _ := add(t, s, key("ana"))
	disconnected, leave := context.WithCancel(t.Context())
	_, first, firstDone, err := s.Listen(disconnected, sess.ID, sess.Key, false)
	if err != nil {
		t.Fatal(err)
	}
	_, second, secondDone, err := s.Listen(t.Context(), sess.ID, sess.Key, false)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	firstDone()
	if first.Err() == nil || second.Err() != nil {
		t.Errorf("the first ended with %v, the second with %v", first.Err(), second.Err())
	}
	if err := s.End(sess.ID, sess.Key); err != nil || second.Err() == nil {
		t.Errorf("%v, and the second ended with %v", err, second.Err())
	}
	secondDone()
}

func TestCloseStreams_EndsAllStreams(t *testing.T) {
	t.Parallel()
	s := newStore(t, time.Minute, 2)
	sess, _ := add(t, s, key("ana"))
	for range 2 {
		_, heard, done, err := s.Listen(t.Context(), sess.ID, sess.Key, false)
		if err != nil {
			t.Fatal(err)
		}
		s.CloseStreams()
		if heard.Err() == nil {
			t.Error("a stream has not ended")
		}
		done()
	}
}
