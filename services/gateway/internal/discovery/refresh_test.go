package discovery_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const timeout = 30 * time.Second

// behaviour describes what a server does when it is queried.
type behaviour int

const (
	answers behaviour = iota
	hangs
	refuses
)

// server is a transport to a server with one tool.
type server struct {
	upstream.ListChanged

	mu    sync.Mutex
	mood  behaviour
	began time.Time
	asked []time.Duration // the times since the start of the test at which its sessions were opened
	tool  string          // the name of its tool, safe by default
}

func (*server) Kind() string { return "test" }
func (*server) Close() error { return nil }

func (s *server) Open(ctx context.Context, _ principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Since(s.began))
	mood := s.mood
	s.mu.Unlock()
	switch mood {
	case hangs:
		<-ctx.Done()
		return nil, upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrTimeout, ctx.Err())
	case refuses:
		return nil, upstream.Answer{}, upstream.ErrNeverSent
	}
	a, err := answer(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`)
	return conn{s}, a, err
}

func (s *server) setBehaviour(m behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mood = m
}

// setTool replaces the tool that the server lists, and makes the server report that its list has changed.
func (s *server) setTool(tool string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tool = tool
	s.Notify()
}

func (s *server) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// conn is a session with the server.
type conn struct{ *server }

func (c conn) Request(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return answer(r, `{"tools":[{"name":"`+cmp.Or(c.tool, "safe")+`"}]}`)
}
func (conn) Notify(context.Context, upstream.Request) error { return nil }

func (conn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }
func (conn) Close(context.Context) error                     { return nil }

func answer(r upstream.Request, result string) (upstream.Answer, error) {
	a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":`+string(r.ID())+`,"result":`+result+`}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: a, Status: 200}, err
}

func newView(t *testing.T, m behaviour) (*discovery.Server, *server) {
	t.Helper()
	peer := &server{mood: m, began: time.Now()}
	return viewOf(t, peer, ""), peer
}

// keeping returns a function that runs KeepFresh for a server. KeepFresh runs until the test ends.
func keeping(t *testing.T) (keep func(v *discovery.Server, places chan struct{}, idle func() bool, others ...*discovery.Server)) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	return func(v *discovery.Server, places chan struct{}, idle func() bool, others ...*discovery.Server) {
		all.Go(func() { v.KeepFresh(ctx, places, idle, others...) })
	}
}

func busy() bool { return false }

// The gateway queries a server before its last result becomes too old. It queries a failing server at increasing
// intervals until the server answers.
func TestKeepFresh_AsksOnASchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keep, places := keeping(t), make(chan struct{}, 2)
		good, first := newView(t, answers)
		bad, tried := newView(t, refuses)
		keep(good, places, busy)
		keep(bad, places, busy)
		for range 20 {
			time.Sleep(time.Minute)
			if found := good.Last(); found == nil || time.Since(found.At) > discovery.Fresh {
				t.Fatalf("%v: the last result is too old", time.Now())
			}
		}
		synctest.Wait()
		if n := len(first.times()); n > 6 {
			t.Errorf("it was asked %d times in 20 minutes", n)
		}
		want := []time.Duration{0, 15 * time.Second, 45 * time.Second, 105 * time.Second, 225 * time.Second, 465 * time.Second, 735 * time.Second, 1005 * time.Second}
		if got := tried.times(); !slices.Equal(got, want) {
			t.Errorf("one that fails was asked at %v, want %v", got, want)
		}
		tried.setBehaviour(answers)
		time.Sleep(5 * time.Minute)
		before := len(tried.times())
		tried.setBehaviour(refuses)
		time.Sleep(5*time.Minute + 20*time.Second)
		if got := tried.times()[before:]; len(got) < 2 || got[1]-got[0] != 15*time.Second {
			t.Errorf("after it has answered it was asked at %v", got)
		}
	})
}

// The gateway queries a server shortly after the server reports a change. If a server keeps reporting changes although
// its list stays the same, the intervals between the queries increase.
func TestKeepFresh_AsksSoonAfterAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keep, places := keeping(t), make(chan struct{}, 1)
		view, peer := newView(t, answers)
		keep(view, places, busy)
		time.Sleep(time.Minute)
		for _, tool := range []string{"one", "two"} {
			peer.setTool(tool)
			time.Sleep(11 * time.Second)
			if got := view.Last().List.Tools[0].Name; got != tool {
				t.Errorf("it lists %q, and %q is known", tool, got)
			}
		}
		before := len(peer.times())
		for range 3600 {
			time.Sleep(time.Second)
			peer.Notify()
		}
		if n := len(peer.times()) - before; n < 13 || n > 20 {
			t.Errorf("in an hour it was asked %d times", n)
		}
		peer.setTool("three")
		time.Sleep(2 * discovery.Fresh) // the server reports no change between two queries
		peer.setTool("four")
		time.Sleep(11 * time.Second)
		if got := view.Last().List.Tools[0].Name; got != "four" {
			t.Errorf("once it has changed again, %q is known", got)
		}
	})
}

// Case X1. If a failing server reports changes, or if its list keeps changing, the gateway does not query the server
// sooner.
func TestKeepFresh_ChangesDoNotHurryAFailingServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ first, then behaviour }{
		"refuses": {refuses, refuses}, "answered once, refuses": {answers, refuses}, "answered once, hangs": {answers, hangs}, "lists something else": {answers, answers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				keep, places := keeping(t), make(chan struct{}, 1)
				view, peer := newView(t, tt.first)
				keep(view, places, busy)
				time.Sleep(time.Minute)
				peer.setBehaviour(tt.then)
				before := len(peer.times())
				for i := range 3600 {
					time.Sleep(time.Second)
					peer.setTool(fmt.Sprint("tool", i))
				}
				if n := len(peer.times()) - before; n < 12 || n > 20 {
					t.Errorf("in an hour it was asked %d times", n)
				}
				peer.setBehaviour(answers)
				time.Sleep(discovery.Fresh)
				if found := view.Last(); found == nil || time.Since(found.At) > discovery.Fresh {
					t.Error("once it answers it is not asked")
				}
			})
		})
	}
}

// Case X1. A server that does not respond occupies a slot only until its query times out. Servers that wait for a slot
// receive one in the order in which they began to wait.
func TestKeepFresh_HangingServersReleaseTheirSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keep, places := keeping(t), make(chan struct{}, 2)
		for range 6 {
			view, _ := newView(t, hangs)
			keep(view, places, busy)
		}
		synctest.Wait()
		good, asked := newView(t, answers)
		keep(good, places, busy)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		times := asked.times()
		if len(times) < 4 {
			t.Fatalf("it was asked at %v", times)
		}
		// The seventh server waits while the six servers that do not respond each occupy a slot until their queries
		// time out.
		if first := times[0]; first > 4*timeout {
			t.Errorf("it was asked first after %v", first)
		}
	})
}

// While the function idle returns true, KeepFresh queries no server. After that, it queries those Servers in the list
// others that have been queried before, and not the rest of them.
func TestKeepFresh_AsksNothingWhileIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keep, places := keeping(t), make(chan struct{}, 1)
		view, first := newView(t, answers)
		other, also := newView(t, answers)
		until := time.Now().Add(time.Hour)
		keep(view, places, func() bool { return time.Now().Before(until) }, other)
		time.Sleep(time.Hour - time.Second)
		synctest.Wait()
		if n := len(first.times()); n != 0 {
			t.Errorf("while idle it was asked %d times", n)
		}
		time.Sleep(10 * time.Minute)
		if len(first.times()) < 2 || len(also.times()) != 0 {
			t.Errorf("it was asked %d times, and the other, which was never asked before, %d", len(first.times()), len(also.times()))
		}
		if _, err := other.Get(t.Context(), discovery.Fresh); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			time.Sleep(time.Minute)
			if time.Since(other.Last().At) > 2*discovery.Fresh {
				t.Fatal("the last result of the other is too old")
			}
		}
	})
}
