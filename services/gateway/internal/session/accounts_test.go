package session_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// stubborn is a connection to a server that never finishes closing a session.
type stubborn struct{ upstream.Conn }

func (stubborn) Close(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Case N2. While a slow server is still closing a session, the session counts against the principal's session limit.
func TestEnd_ClosingSessionsCountAgainstTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Hour, 3)
		open := func(subject string) error {
			done, err := s.BeginOpen(principal.AccountsOfKey(key(subject).Key))
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
			t.Errorf("another principal: %v", err)
		}
		time.Sleep(6 * time.Second)
		if err := open("mallory"); err != nil {
			t.Errorf("later: %v", err)
		}
		time.Sleep(6 * time.Second)
	})
}

// Case N2. The memory for listed definitions does not grow with the number of sessions, because only the most recently
// used sessions keep their definitions.
func TestLearn_DefinitionsOfAPrincipalAreLimited(t *testing.T) {
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
	remembered := 0
	for _, sess := range all {
		for _, name := range names {
			if sess.Definitions.Digest(name) != nil {
				remembered++
			}
		}
	}
	if remembered > most || all[len(all)-1].Definitions.Digest("tool_1") == nil || anas.Definitions.Digest("tool_1") == nil {
		t.Errorf("%d definitions are remembered, want at most %d, and the newest", remembered, most)
	}
	for _, sess := range all {
		if err := s.End(sess.ID, sess.Key); err != nil {
			t.Fatal(err)
		}
	}
	later := []*session.Session{listed(key("mallory")), listed(key("mallory"))}
	for _, sess := range later {
		if sess.Definitions.Digest("tool_1") == nil {
			t.Error("what has ended is still counted")
		}
	}
	s.Learn(all[0], map[string][]byte{"late": {1}}) // this session has ended
}

// Agents share the session limit with the principal that has created them and with the person for whom they work. At
// the limit, a new session replaces the one of their sessions that has been idle for the longest time. It does not
// close other principals' sessions. If all sessions are in use, the new session is refused.
func TestAdd_AgentsShareTheLimitOfTheirMaker(t *testing.T) {
	t.Parallel()
	bot := &identityv1.Principal{Tenant: "t", Subject: "bot", Owner: "olga"}
	agent := func(i int, chain ...*identityv1.Principal) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "t", Subject: fmt.Sprint("agent:t/", i), Owner: "olga", Chain: chain}
	}
	for name, c := range map[string]struct {
		makes func(i int) *identityv1.Principal
		most  int
		says  string
	}{
		"agents of a caller": {func(i int) *identityv1.Principal { return agent(i, bot) }, 3, "bot and agents made by bot hold 3 of 3 sessions"},
		"agents of agents":   {func(i int) *identityv1.Principal { return agent(i, agent(100+i), agent(200), bot) }, 3, "bot and agents made by bot hold 3 of 3 sessions"},
		"agents of a person": {func(i int) *identityv1.Principal { return agent(i) }, 12, "olga and all that work for olga hold 12 of 12 sessions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, time.Hour, 3)
			open := func(p *identityv1.Principal) (*session.Session, error) {
				sess, _ := opened(session.Key{Key: principal.Of(p), Server: "s"})
				sess.Accounts = principal.AccountsOf(p)
				return sess, s.Add(sess)
			}
			others, err := open(&identityv1.Principal{Tenant: "t", Subject: "ben"})
			if err != nil {
				t.Fatal(err)
			}
			foreign, err := open(&identityv1.Principal{Tenant: "u", Subject: "bot", Owner: "olga"})
			if err != nil {
				t.Fatal(err)
			}
			var all []*session.Session
			for i := range c.most {
				sess, err := open(c.makes(i))
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, sess)
			}
			sess, err := open(c.makes(c.most))
			if err != nil || isOpen(s, all[0]) || !isOpen(s, all[1]) || !isOpen(s, others) || !isOpen(s, foreign) {
				t.Errorf("one more is opened with %v, and closes another's than the one longest unused", err)
			}
			for _, one := range append(all[1:], sess) {
				if _, _, err := s.Use(one.ID, one.Key); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := open(c.makes(c.most + 1)); !errors.Is(err, session.ErrTooMany) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("while all are in use: %v", err)
			}
		})
	}
}
