package session_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

func TestCallsAreGivenUpByTheirKey(t *testing.T) {
	t.Parallel()
	var calls session.Calls
	calls.GiveUp("1") // there is none
	got := make(map[string]int)
	begin := func(key, name string) *session.Call { return calls.Begin(key, func() { got[name]++ }) }
	begin("1", "first")
	begin("1", "the same id again")
	begin("2", "another id")
	begin("1", "answered meanwhile").End()
	if calls.GiveUp("1") {
		t.Error("none was sent, and one is said to be")
	}
	if diff := cmp.Diff(map[string]int{"first": 1, "the same id again": 1}, got); diff != "" {
		t.Errorf("given up (-want +got):\n%s", diff)
	}
	begin("1", "sent").Sent()
	if !calls.GiveUp("1") || calls.GiveUp("2") {
		t.Error("what was sent is not told from what was not")
	}
}
