package upstream_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// signalling is a transport that signals changes to the tool list, and counts how often it was closed.
type signalling struct {
	upstream.Transport
	upstream.ListChanged

	mu     sync.Mutex
	closed int
}

func (s *signalling) ToolsChanged() <-chan struct{} { return s.ListChanged.ToolsChanged() }

func (s *signalling) Open(context.Context, principal.Key, upstream.Request) (upstream.Conn, upstream.Answer, error) {
	return new(scriptedConn), upstream.Answer{}, nil
}

func (s *signalling) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// closes returns how often the transport was closed.
func (s *signalling) closes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// forTwoPeople returns a transport for people, and the transports below it: the one for listing tools has the name "".
func forTwoPeople(t *testing.T) (upstream.Transport, map[string]*signalling) {
	t.Helper()
	below := map[string]*signalling{"": new(signalling)}
	over := upstream.EachPerson(below[""], func(person principal.Key) (upstream.Transport, error) {
		below[person.Subject] = new(signalling)
		return below[person.Subject], nil
	})
	t.Cleanup(func() { _ = over.Close() })
	return over, below
}

func openAs(t *testing.T, over upstream.Transport, person string) upstream.Conn {
	t.Helper()
	conn, _, err := over.Open(t.Context(), principal.Key{Tenant: "t", Subject: "bot"}, upstream.Request{Person: principal.Key{Tenant: "t", Subject: person}})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// received returns how many signals arrive in a period in which each of the given functions is called each second.
func received(over upstream.Transport, seconds int, each ...func()) (n int) {
	for range seconds {
		for _, do := range each {
			do()
		}
		synctest.Wait()
		select {
		case <-over.ToolsChanged():
			n++
		default:
		}
		time.Sleep(time.Second)
	}
	return n
}

// A change to the tool list is reported in whichever session the server reports it. One person causes at most one signal
// in a minute, and does not delay those of others. The last change is never lost.
func TestEachPerson_ForwardsChangesToTheToolList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over, below := forTwoPeople(t)
		openAs(t, over, "ana")
		openAs(t, over, "ben")
		if n := received(over, 10, below[""].Notify); n != 10 {
			t.Errorf("the account for listing tools has caused %d signals of 10", n)
		}
		if n := received(over, 170, below["ana"].Notify); n != 3 {
			t.Errorf("one person has caused %d signals in less than 3 minutes", n)
		}
		if n := received(over, 1, below["ben"].Notify); n != 1 {
			t.Error("another person's signal is delayed")
		}
		if n := received(over, 120); n != 1 {
			t.Errorf("after the last change, %d signals arrive", n)
		}
	})
}

// The transport of a person is closed 30 s after her last session, because it has her access token in memory.
func TestEachPerson_IdleTransportIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		over, below := forTwoPeople(t)
		first, second := openAs(t, over, "ana"), openAs(t, over, "ana")
		anas := below["ana"]
		wantClosed := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if n := anas.closes(); n != want {
				t.Errorf("the transport was closed %d times instead of %d", n, want)
			}
		}
		_ = first.Close(t.Context())
		wantClosed(time.Hour, 0)
		_ = second.Close(t.Context())
		wantClosed(20*time.Second, 0)
		third := openAs(t, over, "ana")
		wantClosed(time.Hour, 0)
		_ = third.Close(t.Context())
		wantClosed(29*time.Second, 0)
		wantClosed(2*time.Second, 1)
		_ = openAs(t, over, "ana").Close(t.Context())
		if below["ana"] == anas {
			t.Error("a closed transport was used again")
		}
	})
}
