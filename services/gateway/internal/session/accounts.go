package session

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

func (s *Store) addToAccounts(sess *Session) {
	put := func(key account, maxDigests int) {
		own := s.owners[key]
		if own == nil {
			own = &accountSessions{maxLearned: maxDigests}
			s.owners[key] = own
		}
		sess.positions = append(sess.positions, listPosition{key: key, account: own, at: own.byUse.PushFront(sess)})
	}
	for _, a := range sess.Accounts.All() {
		if a.Principal {
			put(account{Key: a.Key}, maxLearned)
		}
		if a.Person {
			put(account{Key: a.Key, person: true}, quota.PersonFactor*maxLearned)
		}
	}
}

func (s *Store) removeFromAccounts(sess *Session) {
	for _, p := range sess.positions {
		if p.account.byUse.Remove(p.at); p.account.byUse.Len() == 0 {
			delete(s.owners, p.key)
		}
	}
	sess.positions = nil
}

// longestIdle returns the session to close so that an account has space for a new session. This is the account's
// session that has been idle for the longest time and has no request in flight. caller contains the accounts of the
// caller that opens the new session. longestIdle skips the sessions of principals that have created the caller, because
// an agent must not close its creators' sessions. It returns nil if no session can be closed.
func (s *Store) longestIdle(key account, caller *principal.Accounts) *Session {
	own := s.owners[key]
	if own == nil {
		return nil
	}
	for e := own.byUse.Back(); e != nil; e = e.Prev() {
		sess := e.Value.(*Session)
		owner := sess.Accounts.Caller()
		isMakers := owner != caller.Caller() && slices.ContainsFunc(caller.All(), func(a principal.Account) bool { return a.Key == owner })
		if !isMakers && sess.inFlight == 0 {
			return sess
		}
	}
	return nil
}
