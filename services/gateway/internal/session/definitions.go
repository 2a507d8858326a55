package session

import (
	"maps"
	"sync"
)

// Definitions are the digests of the tools' definitions as a session has listed
// them: a call is approved for the definition that its caller saw. The zero value
// is that of a session that has listed none. It is safe for concurrent use.
type Definitions struct {
	mu     sync.Mutex
	byName map[string][]byte
}

// maxDefinitions bounds what one session remembers, and maxLearned what all of one
// principal do; of what is beyond the server is asked again.
const (
	maxDefinitions = 10_000
	maxLearned     = 5 * maxDefinitions
)

// learn notes what a page of a list says.
func (d *Definitions) learn(page map[string][]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byName == nil || len(d.byName)+len(page) > maxDefinitions {
		d.byName = make(map[string][]byte, len(page))
	}
	maps.Copy(d.byName, page)
}

func (d *Definitions) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.byName)
}

func (d *Definitions) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName = nil
}

// Of returns a tool's digest; nil where the session has not listed it.
func (d *Definitions) Of(tool string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byName[tool]
}

// Learn notes what a page of a list says that a session got. Where its principal's
// sessions remember too much together, those longest unused forget what they have listed.
func (s *Store) Learn(sess *Session, page map[string][]byte) {
	sess.Definitions.learn(page) // which may take long, and is nobody else's matter
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sess.isOpen {
		return
	}
	has, now := s.owners[sess.Key.Key], sess.Definitions.count()
	has.learned += now - sess.learned
	sess.learned = now
	forget := func(other *Session) {
		if other != sess && has.learned > maxLearned {
			other.Definitions.forget()
			has.learned -= other.learned
			other.learned = 0
		}
	}
	for e := has.byUse.Back(); e != nil && has.learned > maxLearned; e = e.Prev() {
		other := e.Value.(*Session)
		forget(other)
		for member := range s.membersOf(other) {
			forget(member)
		}
	}
}
