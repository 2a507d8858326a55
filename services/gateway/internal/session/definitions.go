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

// Learn notes what a page of a list says that a session got. Where the sessions of one of its accounts
// remember too much together, those longest unused forget what they have listed.
func (s *Store) Learn(sess *Session, page map[string][]byte) {
	sess.Definitions.learn(page) // which may take long, and concerns this session alone
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sess.isOpen {
		return
	}
	s.count(sess, sess.Definitions.count()-sess.learned)
	for _, p := range holderOf(sess).places {
		s.trim(p.own, sess)
	}
}

// holderOf returns the session that is listed: the hub of a member.
func holderOf(sess *Session) *Session {
	if sess.Hub != nil {
		return sess.Hub
	}
	return sess
}

// count counts n more definitions that a session remembers.
func (s *Store) count(sess *Session, n int) {
	sess.learned += n
	for _, p := range holderOf(sess).places {
		p.own.learned += n
	}
}

// trim has sessions of an account forget until they remember no more than they may, but this one.
func (s *Store) trim(own *owned, but *Session) {
	forget := func(other *Session) {
		if other != but && own.learned > own.most {
			other.Definitions.forget()
			s.count(other, -other.learned)
		}
	}
	for e := own.byUse.Back(); e != nil && own.learned > own.most; e = e.Prev() {
		other := e.Value.(*Session)
		forget(other)
		for member := range s.membersOf(other) {
			forget(member)
		}
	}
}
