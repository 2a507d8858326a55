package allservers_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// listen opens the stream of the client's session.
func (c client) listen() *gatewaytest.Stream {
	return c.Listen(gatewaytest.Message{}.In(c.session), http.MethodGet)
}

// messages returns the messages that have arrived on a stream so far.
func messages(s *gatewaytest.Stream) (out []string) {
	synctest.Wait()
	for _, line := range s.Lines() {
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			out = append(out, "{"+data)
		}
	}
	return out
}

// say makes the server send each event that it receives from the returned channel. The server sends the events on its
// streams.
func say(s *gatewaytest.Server) chan<- upstream.Event {
	events := make(chan upstream.Event)
	s.Listen = func(ctx context.Context, to upstream.Listener) error {
		to.Opened()
		for {
			select {
			case event := <-events:
				if err := to.Event(event); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return events
}

// Case T4. The client's stream at the URL for all servers contains the messages of the servers that the session has
// used, with combined names and without the servers' event ids.
func TestListen_JoinsTheStreamsOfUsedServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		files, notes := say(g.Files()), say(g.Servers["notes"])
		c := connect(g)
		c.list("tools/list")
		stream := c.listen()
		synctest.Wait()
		c.call("files__safe")
		c.call("notes__safe")
		files <- upstream.Event{ID: "e1", Retry: "5", Message: []byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`)}
		synctest.Wait()
		files <- upstream.Event{ID: "e2", Message: []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)} // the gateway sends its own notification instead
		notes <- upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)}
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"mcp.files+a:b"}}`, `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
		}
		if diff := cmp.Diff(want, messages(stream)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if lines := strings.Join(stream.Lines(), "\n"); strings.Contains(lines, "id: ") || strings.Contains(lines, "retry: ") {
			t.Errorf("the stream has ids: %s", lines)
		}
		g.Policy.Change(func() { g.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true} })
		notes <- upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`)}
		if got := messages(stream); len(got) != 2 {
			t.Errorf("a caller without access got %q", got[2:])
		}
		stream.HangUp()
		stream.End()
	})
}

// The client is notified of a list that has changed since the last notification, or since the client last read that
// list.
func TestListen_NotifiesOfListsThatHaveChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		c := connect(g)
		stream := c.listen()
		synctest.Wait()
		c.list("tools/list")
		time.Sleep(time.Minute)
		if got := messages(stream); len(got) != 0 {
			t.Errorf("of lists that have not changed the client got %q", got)
		}
		lists(g.Files(), tool("new"))
		time.Sleep(10 * time.Minute)
		connect(g) // the gateway lists the servers again
		want := []string{`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}
		if diff := cmp.Diff(want, messages(stream)); diff != "" {
			t.Errorf("after a change (-want +got):\n%s", diff)
		}
		g.Policy.Change(func() { g.Policy.Access.PolicyRevision, g.Policy.Access.PromptsAlike = "next", false })
		time.Sleep(time.Minute)
		want = append(want, want[0], `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
		if diff := cmp.Diff(want, messages(stream)); diff != "" {
			t.Errorf("after another policy (-want +got):\n%s", diff)
		}
		stream.HangUp()
		stream.End()
	})
}

// A client is not notified of changes on servers that it may not use.
func TestListen_HidesChangesOfServersOutOfReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		revision := "first"
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			if server == "files" {
				return g.Policy.Access
			}
			return &policyv1.CheckServerResponse{HidesNone: true, PolicyRevision: revision}
		}
		g.Start()
		c := connect(g)
		c.list("tools/list")
		stream := c.listen()
		synctest.Wait()
		g.Policy.Change(func() { revision = "next" })
		lists(g.Servers["notes"], tool("new"))
		time.Sleep(10 * time.Minute)
		connect(g) // the gateway lists the servers again
		if got := messages(stream); len(got) != 0 {
			t.Errorf("the client got %q", got)
		}
		stream.HangUp()
		stream.End()
	})
}

// A list changes after the client has read it and before it opens the stream. The client is still notified.
func TestListen_NotifiesOfWhatChangedBeforeTheStream(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reads bool
		want  int
	}{"a client that has read the list": {true, 1}, "a client that has read no list": {false, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t)
				c := connect(g)
				if tt.reads {
					c.list("tools/list")
				}
				g.Policy.Change(func() { g.Policy.Access.PolicyRevision = "next" })
				stream := c.listen()
				if got := messages(stream); len(got) != tt.want {
					t.Errorf("the client got %q", got)
				}
				stream.HangUp()
				stream.End()
			})
		})
	}
}

// If a server's stream ends, the gateway opens it again. The intervals between the attempts increase until a message
// arrives. If a server has no streams, the gateway requests a stream only once.
func TestListen_ReopensStreamsThatEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		listen func(n int, to upstream.Listener) error
		want   []time.Duration // times after the first stream, in slightly more than two minutes
	}{
		"it has none":  {func(int, upstream.Listener) error { return upstream.ErrNoStream }, nil},
		"it ends each": {func(int, upstream.Listener) error { return upstream.ErrNoAnswer }, []time.Duration{1, 3, 7, 15, 31, 63, 123}},
		"it sends something": {func(n int, to upstream.Listener) error {
			if n == 3 {
				_ = to.Event(upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`)})
			}
			return upstream.ErrNoAnswer
		}, []time.Duration{1, 3, 7, 8, 10, 14, 22, 38, 70}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t)
				var at []time.Time
				g.Files().Listen = func(_ context.Context, to upstream.Listener) error {
					at = append(at, time.Now())
					to.Opened()
					return tt.listen(len(at)-1, to)
				}
				c := connect(g)
				c.call("files__safe")
				stream := c.listen()
				time.Sleep(125 * time.Second)
				stream.HangUp()
				stream.End()
				var got []time.Duration
				for _, one := range at[1:] {
					got = append(got, one.Sub(at[0])/time.Second)
				}
				if !slices.Equal(got, tt.want) {
					t.Errorf("the stream was opened after %d s, want %d", got, tt.want)
				}
			})
		})
	}
}

func TestListen_OpensNoStreamOfAServerOutOfReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		var opened atomic.Int64
		g.Files().Listen = func(ctx context.Context, to upstream.Listener) error {
			opened.Add(1)
			to.Opened()
			<-ctx.Done()
			return ctx.Err()
		}
		c := connect(g)
		c.call("files__safe")
		g.Policy.Change(func() { g.Policy.Access.CouldAllow = false })
		stream := c.listen()
		time.Sleep(time.Second / 2)
		if opened.Load() != 0 {
			t.Error("the stream of a server out of reach was opened")
		}
		g.Policy.Change(func() { g.Policy.Access.CouldAllow = true })
		time.Sleep(time.Minute)
		if opened.Load() != 1 {
			t.Errorf("the stream was opened %d times", opened.Load())
		}
		stream.HangUp()
		stream.End()
	})
}

// If a client opens a stream or makes a call that is denied, the gateway does not contact the server. The gateway opens
// the server's stream only after the client has used the server.
func TestListen_OpensNoSessionWithAServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		files := say(g.Files())
		g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		c := connect(g)
		c.call("files__safe")
		stream := c.listen()
		time.Sleep(time.Minute)
		if n := len(g.Files().Opened()); n != 0 {
			t.Errorf("%d sessions were opened", n)
		}
		g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW} })
		c.call("files__safe")
		synctest.Wait()
		files <- upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`)}
		if got := messages(stream); len(got) != 1 {
			t.Errorf("the client got %q", got)
		}
		stream.HangUp()
		stream.End()
	})
}

// While the client's stream is open, the client uses a server for the first time. The gateway adds the server's
// messages to that stream. If a member session has never been used to contact its server, the gateway opens no stream
// for it.
func TestListen_OpensStreamsOfServersAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		notes := say(g.Servers["notes"])
		c := connect(g)
		stream := c.listen()
		synctest.Wait()
		c.call("notes__safe")
		synctest.Wait()
		notes <- upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`)}
		want := []string{`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x","logger":"notes"}}`}
		if diff := cmp.Diff(want, messages(stream)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stream.HangUp()
		stream.End()
	})
}
