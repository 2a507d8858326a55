package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Case X1. Checks that the requests of a server are limited: those that wait, and those that are sent in a minute,
// including refused ones. The gateway can always send requests.
func TestX1AServersRequestsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a session.Asked
		var open []*session.Question
		for i := range 16 {
			q, err := a.Ask(fmt.Append(nil, i))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, q)
		}
		if _, err := a.Ask([]byte("99")); !errors.Is(err, session.ErrAskedTooMuch) {
			t.Errorf("one more: %v", err)
		}
		own, err := a.AskOwn([]byte(`"sluice-x"`))
		if err != nil {
			t.Errorf("the gateway's own: %v", err)
		}
		defer own.Close()
		for _, q := range open {
			q.Close()
		}
		for i := range 600 - 17 {
			q, err := a.Ask(fmt.Append(nil, i))
			if err != nil {
				t.Fatalf("the %dth in a minute: %v", i+18, err)
			}
			q.Close()
		}
		if _, err := a.Ask([]byte("1")); !errors.Is(err, session.ErrAskedFlood) {
			t.Errorf("too many in a minute: %v", err)
		}
		time.Sleep(time.Minute)
		q, err := a.Ask([]byte("1"))
		if err != nil {
			t.Errorf("a minute later: %v", err)
		}
		q.Close()
	})
}

// Checks that an id must be a string or an integer that no waiting request has, and that a server cannot cancel
// requests of the gateway.
func TestIDsOfQuestions(t *testing.T) {
	t.Parallel()
	var a session.Asked
	for _, id := range []string{"", "1.0", "null", "true", "{}"} {
		if _, err := a.Ask([]byte(id)); !errors.Is(err, session.ErrAskedID) {
			t.Errorf("%s: %v", id, err)
		}
	}
	theirs, err := a.Ask([]byte(`"a"`))
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.AskOwn([]byte(`"b"`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Ask([]byte(`"\u0061"`)); !errors.Is(err, session.ErrAskedTwice) {
		t.Errorf("the same id, spelled differently: %v", err)
	}
	a.TakeBack([]byte(`"a"`))
	a.TakeBack([]byte(`"a"`))
	a.TakeBack([]byte(`"b"`))
	void := func(q *session.Question) bool {
		select {
		case <-q.Void():
			return true
		default:
			return false
		}
	}
	if !void(theirs) || void(own) {
		t.Errorf("cancelled: %t, %t", void(theirs), void(own))
	}
	a.Close()
	if !void(own) {
		t.Error("a request outlives its session")
	}
	if _, err := a.AskOwn([]byte(`"c"`)); !errors.Is(err, session.ErrAskedClosed) {
		t.Errorf("a request to a closed session: %v", err)
	}
	theirs.Close()
	own.Close()
}
