//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// listen starts to listen in a session. It returns a channel for the received messages, a function that stops
// listening, and a channel for the error that Listen returns.
func (s session) listen(memory *limits.Memory) (heard chan string, hangUp func(), ended chan error) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	heard, ended = make(chan string, 100), make(chan error, 1)
	opened := make(chan struct{})
	go func() {
		ended <- s.conn.Listen(ctx, upstream.Listener{
			Room: memory, Opened: func() { close(opened) },
			Event: func(e upstream.Event) error {
				heard <- string(e.Message)
				return nil
			},
		})
	}()
	<-opened
	return heard, cancel, ended
}

const (
	updated = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`
	changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	rooted  = `{"jsonrpc":"2.0","id":42,"method":"roots/list"}`
)

// Messages that belong to no request are sent to the only session. If there are several sessions, or if the process is
// shared, sessions receive only notifications about the server itself.
func TestListen_ReceivesMessagesOutsideOfRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		shared bool
		others int
		want   []string
	}{
		"one session":      {false, 0, []string{updated, changed, rooted}},
		"two":              {false, 1, []string{changed}},
		"a shared process": {true, 0, []string{changed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "good", func(c *stdio.Config) { c.Shared = tt.shared })
			sessions := []session{r.open(t, ana)}
			for range tt.others {
				sessions = append(sessions, r.open(t, ana))
			}
			memory := r.all.Open(&limits.Owner{Server: "fake"})
			defer memory.Close()
			var all []chan string
			for _, s := range sessions {
				heard, hangUp, _ := s.listen(memory)
				defer hangUp()
				all = append(all, heard)
			}
			sessions[0].call(1, "aside", nil)
			for i, heard := range all {
				var got []string
				for range tt.want {
					got = append(got, <-heard)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("session %d got (-want +got):\n%s", i, diff)
				}
			}
			answered := `{"jsonrpc":"2.0","id":42,"error"`
			if len(tt.want) == 3 {
				answered = `{"jsonrpc":"2.0","id":42,"result":{"roots":[]}}`
				sessions[0].notify(answered)
			}
			eventually.Holds(t, "the process has its answer", func() bool {
				return strings.Contains(sessions[0].call(2, "replies", nil)["replies"], answered)
			})
			for i, heard := range all {
				if len(heard) > 0 {
					t.Errorf("session %d also got %s", i, <-heard)
				}
			}
		})
	}
}

// After a listener has stopped or its session is closed, the listener receives no more messages. A listener also
// receives the messages of a replacement process.
func TestListen_StoppedListenerReceivesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	memory := r.all.Open(&limits.Owner{Server: "fake"})
	defer memory.Close()
	_, hangUp, ended := s.listen(memory)
	hangUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	heard, hangUp, ended := s.listen(memory)
	defer hangUp()
	if _, err := s.try(1, "die", nil); err == nil {
		t.Fatal("it lives")
	}
	s.call(2, "aside", nil)
	if got := <-heard; got != updated {
		t.Errorf("from another process it got %s", got)
	}
	if err := s.conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, upstream.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
	if err := s.conn.Listen(t.Context(), upstream.Listener{Room: memory}); !errors.Is(err, upstream.ErrNoStream) {
		t.Errorf("a closed session listens: %v", err)
	}
}

// When a process ends, the client receives a cancellation for each open request of that process. The next process
// receives no responses to these requests.
func TestListen_RequestsEndWithTheirProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", nil)
	s := r.open(t, ana)
	memory := r.all.Open(&limits.Owner{Server: "fake"})
	defer memory.Close()
	heard, hangUp, _ := s.listen(memory)
	defer hangUp()
	s.call(1, "aside", nil)
	for got := ""; got != rooted; got = <-heard {
	}
	if _, err := s.try(2, "die", nil); err == nil {
		t.Fatal("it lives")
	}
	if got := <-heard; got != `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":42}}` {
		t.Errorf("got %s", got)
	}
	if got := s.call(3, "replies", nil)["replies"]; got != "" {
		t.Errorf("the new process has got %s", got)
	}
	for _, late := range []string{`{"jsonrpc":"2.0","id":42,"result":{"roots":[]}}`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`} {
		if err := s.conn.Notify(t.Context(), request(late)); !errors.Is(err, upstream.ErrNeverSent) {
			t.Errorf("%s: %v", late, err)
		}
	}
}

// Case U1. A shared process's requests are not sent to a client, regardless of the method. The process receives exactly
// one refusal for each request.
func TestListen_RequestsOfASharedProcessAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, "good", func(c *stdio.Config) { c.Shared = true })
	sessions := []session{r.open(t, ana), r.open(t, ben)}
	memory := r.all.Open(&limits.Owner{Server: "fake"})
	defer memory.Close()
	for _, s := range sessions {
		heard, hangUp, _ := s.listen(memory)
		defer hangUp()
		defer func() {
			if len(heard) > 0 {
				t.Errorf("a client got %s", <-heard)
			}
		}()
	}
	sessions[0].call(1, "pose", nil)
	want := `{"jsonrpc":"2.0","id":43,"error":{"code":-32601,"message":"No client accepts this request here."}}`
	eventually.Holds(t, "the process has its answer", func() bool { return sessions[0].call(2, "replies", nil)["replies"] == want })
}
