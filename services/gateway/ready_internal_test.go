package gateway

import (
	"slices"
	"testing"
)

// Case N1. The journal fails. /readyz reports this to unauthenticated callers, but not the journal's path or the
// system's error.
func TestNotReady_SaysNothingAboutTheMachine(t *testing.T) {
	t.Parallel()
	s := newAdmin(t)
	const ill = "the journal can't write records; the gateway's log says why"
	if why := s.NotReady(); slices.Contains(why, ill) {
		t.Errorf("the journal is unhealthy from the start: %q", why)
	}
	if why := s.NotReady(); !slices.Contains(why, "the identity service has not reported yet which tokens are valid") {
		t.Errorf("no token can be checked, but the reasons are %q", why)
	}
	if err := s.journal.Close(); err != nil {
		t.Fatal(err)
	}
	if why := s.NotReady(); !slices.Contains(why, ill) || slices.Contains(why, s.Health(t.Context()).Error()) {
		t.Errorf("got %q, want %q", why, ill)
	}
}
