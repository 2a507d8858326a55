package session_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// over is a transport whose connection a test sets.
type over struct {
	upstream.Transport

	conn upstream.Conn
}

func (over) Kind() string                  { return "http" }
func (over) ToolsChanged() <-chan struct{} { return nil }

func (o over) Open(context.Context, principal.Key, upstream.Request) (upstream.Conn, upstream.Answer, error) {
	return o.conn, upstream.Answer{}, nil
}

func with(conn upstream.Conn) *upstream.Session {
	counts, err := meters.New(noop.Meter{})
	if err != nil {
		panic(err)
	}
	server, err := upstream.New(over{conn: conn}, counts)
	if err != nil {
		panic(err)
	}
	sess, _, err := server.Open(context.Background(), principal.Key{}, upstream.ListTools("", nil), nil)
	if err != nil {
		panic(err)
	}
	return sess
}

type conn struct {
	upstream.Conn
	closed atomic.Int64
	err    error
}

func (c *conn) Close(ctx context.Context) error {
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("a server may take for ever")
	}
	c.closed.Add(1)
	return c.err
}

func newStore(t testing.TB, idle time.Duration, most int) *session.Store {
	t.Helper()
	s, err := session.NewStore(session.Config{Idle: idle, MaxPerPrincipal: most, Ended: func(*session.Session) {}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func key(subject string) session.Key {
	return session.Key{Key: principal.Key{Tenant: "t", Subject: subject}, Server: "s"}
}

func opened(k session.Key) (*session.Session, *conn) {
	id, digest := session.NewID()
	c := new(conn)
	return &session.Session{ID: id, Digest: digest, Key: k, Upstream: with(c), Opened: time.Now()}, c
}

func add(t testing.TB, s *session.Store, k session.Key) (*session.Session, *conn) {
	t.Helper()
	sess, c := opened(k)
	if err := s.Add(sess); err != nil {
		t.Fatal(err)
	}
	return sess, c
}

func isOpen(s *session.Store, sess *session.Session) bool {
	return slices.ContainsFunc(s.List(sess.Key.Tenant), func(st session.State) bool { return st.Session == sess })
}

func TestNewStore_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, make := range map[string]func() (*session.Store, error){
		"the zero configuration": func() (*session.Store, error) { return session.NewStore(session.Config{}, log) },
		"no time": func() (*session.Store, error) {
			return session.NewStore(session.Config{MaxPerPrincipal: 1, Ended: func(*session.Session) {}}, log)
		},
		"no room": func() (*session.Store, error) {
			return session.NewStore(session.Config{Idle: time.Minute, Ended: func(*session.Session) {}}, log)
		},
		"no log": func() (*session.Store, error) {
			return session.NewStore(session.Config{Idle: time.Minute, MaxPerPrincipal: 1, Ended: func(*session.Session) {}}, nil)
		},
	} {
		if s, err := make(); err == nil || s != nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Case I4. A session id is valid only for its principal and server. If a caller uses the id of another principal's
// session, the result is the same as for an id that does not exist.
func TestUse_FindsSessionOnlyForItsPrincipal(t *testing.T) {
	t.Parallel()
	s := newStore(t, time.Minute, 10)
	sess, c := add(t, s, key("ana"))
	for name, k := range map[string]session.Key{
		"another subject": {Key: principal.Key{Tenant: "t", Subject: "ben"}, Server: "s"},
		"another tenant":  {Key: principal.Key{Tenant: "u", Subject: "ana"}, Server: "s"},
		"another server":  {Key: principal.Key{Tenant: "t", Subject: "ana"}, Server: "z"},
		"nobody":          {},
	} {
		if _, _, err := s.Use(sess.ID, k); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("%s used it: %v", name, err)
		}
		if err := s.End(sess.ID, k); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("%s ended it: %v", name, err)
		}
	}
	for _, id := range []string{"", "x", sess.Digest, sess.ID + " "} {
		if _, _, err := s.Use(id, sess.Key); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("%q is the handle of something: %v", id, err)
		}
	}
	got, done, err := s.Use(sess.ID, sess.Key)
	if err != nil || got != sess || c.closed.Load() != 0 {
		t.Fatalf("its owner can't use it: %v", err)
	}
	done()
	if len(s.List("u")) != 0 || len(s.List("")) != 0 || len(s.List("t")) != 1 {
		t.Error("a session is listed in a tenant that is not its own")
	}
}

func TestNewID_IsRandomAndHasItsDigest(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for range 1000 {
		id, digest := session.NewID()
		if seen[id] || seen[digest] || len(id) < 26 || len(digest) != 16 {
			t.Fatalf("%q, %q", id, digest)
		}
		seen[id], seen[digest] = true, true
	}
}

func TestEnd_SessionCannotBeUsedAfterwards(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Minute, 10)
		sess, c := add(t, s, key("ana"))
		_, done, err := s.Use(sess.ID, sess.Key)
		if err != nil {
			t.Fatal(err)
		}
		c.err = errors.New("it does not want to")
		if err := s.End(sess.ID, sess.Key); err != nil {
			t.Fatal(err)
		}
		if err := s.End(sess.ID, sess.Key); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("it ended twice: %v", err)
		}
		if _, _, err := s.Use(sess.ID, sess.Key); !errors.Is(err, session.ErrUnknown) {
			t.Errorf("it can still be used: %v", err)
		}
		done() // ends a request after its session has ended
		synctest.Wait()
		if s.Len() != 0 || c.closed.Load() != 1 {
			t.Errorf("%d sessions are open, it was closed %d times at its server", s.Len(), c.closed.Load())
		}
	})
}

func TestRun_ClosesIdleSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const idle = 10 * time.Minute
		s := newStore(t, idle, 10)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		unused, unusedConn := add(t, s, key("ana"))
		used, _ := add(t, s, key("ana"))
		busy, busyConn := add(t, s, key("ben"))
		_, done, err := s.Use(busy.ID, busy.Key)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(idle - time.Second)
		if _, release, err := s.Use(used.ID, used.Key); err != nil {
			t.Error(err)
		} else {
			release()
		}
		time.Sleep(idle/10 + 2*time.Second) // the sweep runs ten times
		if isOpen(s, unused) || unusedConn.closed.Load() != 1 || !isOpen(s, used) || !isOpen(s, busy) {
			t.Errorf("open: unused %v, used %v, busy %v", isOpen(s, unused), isOpen(s, used), isOpen(s, busy))
		}
		time.Sleep(2 * idle)
		if isOpen(s, used) || !isOpen(s, busy) {
			t.Errorf("open: used %v, busy %v", isOpen(s, used), isOpen(s, busy))
		}
		done() // the session is now idle
		time.Sleep(idle - time.Second)
		if !isOpen(s, busy) {
			t.Error("a session was closed right after its request")
		}
		stop()
		<-ended
		if s.Len() != 0 || busyConn.closed.Load() != 1 {
			t.Errorf("%d sessions outlived the store", s.Len())
		}
		late, _ := opened(key("ana"))
		if err := s.Add(late); err == nil {
			t.Error("a session was opened in a store that has ended")
		}
		if _, err := s.BeginOpen(principal.AccountsOfKey(key("ana").Key)); err == nil {
			t.Error("a session may be opened in a store that has ended")
		}
	})
}

// A principal already has the maximum number of sessions. A new session closes one of them: among those without a
// request in flight, the one that has been idle for the longest time.
func TestAdd_ClosesLongestIdleSessionWhenFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Hour, 3)
		var all []*session.Session
		for i := range 3 {
			// The principal's sessions with different servers count together.
			sess, _ := add(t, s, session.Key{Key: principal.Key{Tenant: "t", Subject: "ana"}, Server: fmt.Sprint(i)})
			all = append(all, sess)
			time.Sleep(time.Second)
		}
		other, _ := add(t, s, key("ben"))
		_, done, err := s.Use(all[0].ID, all[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		fourth, _ := add(t, s, key("ana"))
		if !isOpen(s, all[0]) || isOpen(s, all[1]) || !isOpen(s, all[2]) || !isOpen(s, fourth) || !isOpen(s, other) {
			t.Error("a session other than the longest idle was closed")
		}
		var release []func()
		for _, sess := range []*session.Session{all[2], fourth} {
			_, r, err := s.Use(sess.ID, sess.Key)
			if err != nil {
				t.Fatal(err)
			}
			release = append(release, r)
		}
		fifth, _ := opened(key("ana"))
		if err := s.Add(fifth); !errors.Is(err, session.ErrTooMany) || isOpen(s, fifth) {
			t.Errorf("a session was opened although all are in use: %v", err)
		}
		release[1]()
		if err := s.Add(fifth); err != nil || isOpen(s, fourth) {
			t.Errorf("no session was closed for a new one: %v", err)
		}
		release[0]()
		done()
		synctest.Wait()
		if s.Len() != 4 {
			t.Errorf("%d sessions are open, want 3 of one principal and 1 of another", s.Len())
		}
	})
}

// The number of sessions that are being opened is limited. Otherwise that number could grow without bound while a
// server is slow to open sessions.
func TestBeginOpen_ConcurrentOpeningsAreLimited(t *testing.T) {
	t.Parallel()
	s := newStore(t, time.Hour, 2)
	first, err := s.BeginOpen(principal.AccountsOfKey(key("ana").Key))
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.BeginOpen(principal.AccountsOfKey(principal.Key{Tenant: "t", Subject: "ana"}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginOpen(principal.AccountsOfKey(key("ana").Key)); !errors.Is(err, session.ErrTooMany) {
		t.Errorf("a third opening: %v", err)
	}
	if other, err := s.BeginOpen(principal.AccountsOfKey(key("ben").Key)); err != nil {
		t.Errorf("another principal: %v", err)
	} else {
		other()
	}
	add(t, s, key("ana"))
	first()
	if retry, err := s.BeginOpen(principal.AccountsOfKey(key("ana").Key)); err != nil {
		t.Errorf("after one has ended: %v", err)
	} else {
		retry()
	}
	second()
	if s.Len() != 1 {
		t.Errorf("%d sessions are open, want 1", s.Len())
	}
}

// Goroutines use the store concurrently. No principal exceeds its maximum number of sessions, a session in use is never
// closed for a new session, and each session is closed exactly once.
func TestStore_LimitsHoldUnderConcurrentUse(t *testing.T) {
	t.Parallel()
	const most = 4
	s := newStore(t, time.Millisecond, most)
	ctx, stop := context.WithCancel(t.Context())
	var swept, wg sync.WaitGroup
	swept.Go(func() { _ = s.Run(ctx) })
	conns := make(chan *conn, 10_000)
	for i := range 8 {
		k := key(fmt.Sprint(i % 2))
		wg.Go(func() {
			for j := range 500 {
				done, err := s.BeginOpen(principal.AccountsOfKey(k.Key))
				if err != nil {
					continue
				}
				sess, c := opened(k)
				err = s.Add(sess)
				done()
				if err != nil {
					continue
				}
				conns <- c
				_, release, err := s.Use(sess.ID, k)
				if err != nil {
					continue
				}
				if n := len(s.List("t")); n > 2*most {
					t.Errorf("%d sessions of two principals", n)
				}
				if c.closed.Load() != 0 {
					t.Error("a session in use was closed")
				}
				release()
				if j%3 == 0 {
					_ = s.End(sess.ID, k)
				}
			}
		})
	}
	wg.Wait()
	stop()
	swept.Wait()
	close(conns)
	for c := range conns {
		if n := c.closed.Load(); n != 1 {
			t.Fatalf("a session was closed %d times", n)
		}
	}
	if s.Len() != 0 || len(s.List("t")) != 0 {
		t.Errorf("%d sessions are left", s.Len())
	}
}

// The test compares the store with a model that contains one principal's open sessions in the order of their use.
func TestStore_BehavesLikeItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		const most = 3
		s, err := session.NewStore(session.Config{Idle: time.Hour, MaxPerPrincipal: most, Ended: func(*session.Session) {}}, slog.New(slog.DiscardHandler))
		if err != nil {
			r.Fatal(err)
		}
		var open []*session.Session // the longest idle session comes first
		busy := make(map[*session.Session][]func())
		use := func(sess *session.Session) {
			open = append(slices.DeleteFunc(open, func(o *session.Session) bool { return o == sess }), sess)
		}
		r.Repeat(map[string]func(*rapid.T){
			"open": func(r *rapid.T) {
				sess, _ := opened(key("ana"))
				err := s.Add(sess)
				victim := slices.IndexFunc(open, func(o *session.Session) bool { return len(busy[o]) == 0 })
				switch {
				case len(open) < most:
				case victim < 0:
					if !errors.Is(err, session.ErrTooMany) {
						r.Fatalf("opened one too many: %v", err)
					}
					return
				default:
					open = slices.Delete(open, victim, victim+1)
				}
				if err != nil {
					r.Fatal(err)
				}
				open = append(open, sess)
			},
			"begin": func(r *rapid.T) {
				if len(open) == 0 {
					r.Skip()
				}
				sess := rapid.SampledFrom(open).Draw(r, "session")
				_, done, err := s.Use(sess.ID, sess.Key)
				if err != nil {
					r.Fatal(err)
				}
				busy[sess] = append(busy[sess], done)
				use(sess)
			},
			"finish": func(r *rapid.T) {
				for _, sess := range open {
					if n := len(busy[sess]); n > 0 {
						busy[sess][n-1]()
						busy[sess] = busy[sess][:n-1]
						use(sess)
						return
					}
				}
			},
			"end": func(r *rapid.T) {
				if len(open) == 0 {
					r.Skip()
				}
				sess := rapid.SampledFrom(open).Draw(r, "session")
				if err := s.End(sess.ID, sess.Key); err != nil {
					r.Fatal(err)
				}
				open = slices.DeleteFunc(open, func(o *session.Session) bool { return o == sess })
			},
			"": func(r *rapid.T) {
				if s.Len() != len(open) {
					r.Fatalf("%d are open, want %d", s.Len(), len(open))
				}
				for _, sess := range open {
					if !isOpen(s, sess) {
						r.Fatal("one that should be open is not")
					}
				}
			},
		})
	})
}

func TestList_IsOrderedByLastUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, time.Hour, 10)
		var want []*session.Session
		for range 5 {
			sess, _ := add(t, s, key("ana"))
			want = append([]*session.Session{sess}, want...)
			time.Sleep(time.Second)
		}
		var got []*session.Session
		for _, st := range s.List("t") {
			got = append(got, st.Session)
			if st.InFlight != 0 || st.LastUsed.IsZero() {
				t.Errorf("%+v", st)
			}
		}
		if !slices.Equal(got, want) {
			t.Error("the sessions are not in the order of their use")
		}
	})
}
