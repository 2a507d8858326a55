package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// Case X1. There is a limit on the number of a server's requests that wait for a response, and a limit on the number of
// requests that the server sends per minute. Refused requests also count. Requests from the gateway are not limited.
func TestClientRequests_ServerRequestsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a session.ClientRequests
		var open []*session.ClientRequest
		for i := range 16 {
			q, err := a.AddFromServer(fmt.Append(nil, i))
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, q)
		}
		if _, err := a.AddFromServer([]byte("99")); !errors.Is(err, session.ErrTooManyRequests) {
			t.Errorf("one more: %v", err)
		}
		own, err := a.AddOwn([]byte(`"sluice-x"`))
		if err != nil {
			t.Errorf("the gateway's own: %v", err)
		}
		defer own.Close()
		for _, q := range open {
			q.Close()
		}
		for i := range 600 - 17 {
			q, err := a.AddFromServer(fmt.Append(nil, i))
			if err != nil {
				t.Fatalf("the %dth in a minute: %v", i+18, err)
			}
			q.Close()
		}
		if _, err := a.AddFromServer([]byte("1")); !errors.Is(err, session.ErrRequestFlood) {
			t.Errorf("too many in a minute: %v", err)
		}
		time.Sleep(time.Minute)
		q, err := a.AddFromServer([]byte("1"))
		if err != nil {
			t.Errorf("a minute later: %v", err)
		}
		q.Close()
	})
}

// A request id must be a string or an integer, and different from the ids of other waiting requests. A server cannot
// cancel the gateway's requests.
func TestClientRequests_IDsAreUnique(t *testing.T) {
	t.Parallel()
	var a session.ClientRequests
	for _, id := range []string{"", "1.0", "null", "true", "{}"} {
		if _, err := a.AddFromServer([]byte(id)); !errors.Is(err, session.ErrRequestID) {
			t.Errorf("%s: %v", id, err)
		}
	}
	theirs, err := a.AddFromServer([]byte(`"a"`))
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.AddOwn([]byte(`"b"`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.AddFromServer([]byte(`"\u0061"`)); !errors.Is(err, session.ErrDuplicateRequest) {
		t.Errorf("the same id, spelled differently: %v", err)
	}
	a.CancelRequest([]byte(`"a"`))
	a.CancelRequest([]byte(`"a"`))
	a.CancelRequest([]byte(`"b"`))
	void := func(q *session.ClientRequest) bool {
		select {
		case <-q.Cancelled():
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
	if _, err := a.AddOwn([]byte(`"c"`)); !errors.Is(err, session.ErrRequestsClosed) {
		t.Errorf("a request to a closed session: %v", err)
	}
	theirs.Close()
	own.Close()
}
