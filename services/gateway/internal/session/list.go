package session

import (
	"cmp"
	"slices"
	"time"
)

// State is a snapshot of a session's state.
type State struct {
	*Session
	// LastUsed is when the session was last used.
	LastUsed time.Time
	// InFlight is how many requests are in flight.
	InFlight int
}

// List returns a tenant's sessions, most recently used first. Sessions that were last used at the same time are sorted
// by digest.
func (s *Store) List(tenant string) []State {
	states := s.snapshot(tenant)
	slices.SortFunc(states, func(a, b State) int {
		return cmp.Or(b.LastUsed.Compare(a.LastUsed), cmp.Compare(a.Digest, b.Digest))
	})
	return states
}

func (s *Store) snapshot(tenant string) []State {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []State
	for _, sess := range s.byID {
		if sess.Key.Tenant == tenant {
			out = append(out, State{Session: sess, LastUsed: sess.lastUsed, InFlight: sess.inFlight})
		}
	}
	return out
}

// Len returns how many sessions are open. An aggregate session and its member sessions count as one.
func (s *Store) Len() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.byID {
		if sess.Hub == nil {
			n++
		}
	}
	return n
}
