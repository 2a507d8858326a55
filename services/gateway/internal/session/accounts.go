package session

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

func (s *Store) addToAccounts(sess *Session) {
	put := func(of account, most int) {
		own := s.owners[of]
		if own == nil {
			own = &accountSessions{maxLearned: most}
			s.owners[of] = own
		}
		sess.positions = append(sess.positions, listPosition{of: of, account: own, at: own.byUse.PushFront(sess)})
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
			delete(s.owners, p.of)
		}
	}
	sess.positions = nil
}

// longestIdle returns the session of an account that has been idle for the longest time and has no request in flight,
// or nil if there is none. The session is to be closed so that the caller with the given accounts can have a new one.
// longestIdle skips the sessions of principals that have created this caller, because an agent must not close them.
func (s *Store) longestIdle(of account, by *principal.Accounts) *Session {
	own := s.owners[of]
	if own == nil {
		return nil
	}
	for e := own.byUse.Back(); e != nil; e = e.Prev() {
		sess := e.Value.(*Session)
		owner := sess.Accounts.Caller()
		isMakers := owner != by.Caller() && slices.ContainsFunc(by.All(), func(a principal.Account) bool { return a.Key == owner })
		if !isMakers && sess.inFlight == 0 {
			return sess
		}
	}
	return nil
}
