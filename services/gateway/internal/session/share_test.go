package session_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// stubborn is a session that its server does not end.
type stubborn struct{ upstream.Conn }

func (stubborn) Close(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// N2: who opens sessions and ends them again leaves no more of them behind, at a server
// that takes its time, than it may have open.
func TestN2SessionsThatEndHaveAShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Hour, 3)
		open := func(subject string) error {
			done, err := s.Opening(key(subject))
			if err != nil {
				return err
			}
			defer done()
			sess, _ := opened(key(subject))
			sess.Upstream = with(stubborn{})
			if err := s.Add(sess); err != nil {
				return err
			}
			return s.End(sess.ID, sess.Key)
		}
		for i := range 3 {
			if err := open("mallory"); err != nil {
				t.Fatalf("session %d: %v", i, err)
			}
		}
		if err := open("mallory"); !errors.Is(err, session.ErrTooMany) {
			t.Errorf("while three are being ended: %v", err)
		}
		if err := open("ana"); err != nil {
			t.Errorf("somebody else: %v", err)
		}
		time.Sleep(6 * time.Second)
		if err := open("mallory"); err != nil {
			t.Errorf("later: %v", err)
		}
		time.Sleep(6 * time.Second)
	})
}

// N2: nor does what sessions have listed grow with their number: those used last are
// remembered.
func TestN2WhatSessionsHaveListedHasAShare(t *testing.T) {
	t.Parallel()
	const tools, most = 10_000, 50_000
	s := newStore(t, time.Hour, 100)
	names := make([]string, tools)
	for i := range names {
		names[i] = fmt.Sprint("tool_", i)
	}
	var all []*session.Session
	listed := func(k session.Key) *session.Session {
		sess, _ := add(t, s, k)
		page := make(map[string][]byte, tools)
		for _, name := range names {
			page[name] = []byte(sess.ID)
		}
		s.Learn(sess, page)
		return sess
	}
	anas := listed(key("ana"))
	for range 20 {
		all = append(all, listed(key("mallory")))
	}
	kept := 0
	for _, sess := range all {
		for _, name := range names {
			if sess.Definitions.Of(name) != nil {
				kept++
			}
		}
	}
	if kept > most || all[len(all)-1].Definitions.Of("tool_1") == nil || anas.Definitions.Of("tool_1") == nil {
		t.Errorf("%d definitions are remembered, want at most %d, and the newest", kept, most)
	}
	for _, sess := range all {
		if err := s.End(sess.ID, sess.Key); err != nil {
			t.Fatal(err)
		}
	}
	again := []*session.Session{listed(key("mallory")), listed(key("mallory"))}
	for _, sess := range again {
		if sess.Definitions.Of("tool_1") == nil {
			t.Error("what has ended is still counted")
		}
	}
	s.Learn(all[0], map[string][]byte{"late": {1}}) // it has ended: nobody asks any more
}
