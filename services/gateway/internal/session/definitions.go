package session

import (
	"maps"
	"sync"
)

// Definitions contains the digests of the tool definitions that a session has listed. The gateway needs them because
// the approval of a call applies to the definition that the caller has seen. The zero value is empty. It is safe for
// concurrent use.
type Definitions struct {
	mu     sync.Mutex
	byName map[string][]byte
}

// maxDefinitions limits how many digests one session stores. maxLearned limits how many digests all sessions of one
// principal store together. If a digest is not stored, the gateway lists the server's tools to find it.
const (
	maxDefinitions = 10_000
	maxLearned     = 5 * maxDefinitions
)

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

// Digest returns the digest of a tool's definition, or nil if the session has not listed the tool.
func (d *Definitions) Digest(tool string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byName[tool]
}

// Learn stores the digests from a page of a list that a session has received. If the sessions of one of the session's
// quota accounts then store too many digests together, Learn removes the digests of the sessions that have been idle
// for the longest time.
func (s *Store) Learn(sess *Session, page map[string][]byte) {
	sess.Definitions.learn(page) // without the lock, because it may take long and affects only this session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sess.isOpen {
		return
	}
	s.count(sess, sess.Definitions.count()-sess.learned)
	for _, p := range listedSession(sess).positions {
		s.trim(p.account, sess)
	}
}

// listedSession returns the session under which the given session is counted in the quota accounts. For a member
// session, this is the aggregate session. For all other sessions, it is the session itself.
func listedSession(sess *Session) *Session {
	if sess.Hub != nil {
		return sess.Hub
	}
	return sess
}

func (s *Store) count(sess *Session, n int) {
	sess.learned += n
	for _, p := range listedSession(sess).positions {
		p.account.learned += n
	}
}

// trim removes the digests of an account's sessions until the account is within its limit. It does not remove the
// digests of the excepted session.
func (s *Store) trim(own *accountSessions, excepted *Session) {
	forget := func(other *Session) {
		if other != excepted && own.learned > own.maxLearned {
			other.Definitions.forget()
			s.count(other, -other.learned)
		}
	}
	for e := own.byUse.Back(); e != nil && own.learned > own.maxLearned; e = e.Prev() {
		other := e.Value.(*Session)
		forget(other)
		for member := range s.membersOf(other) {
			forget(member)
		}
	}
}
