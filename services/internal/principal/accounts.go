package principal

import (
	"slices"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// An Account is a principal, a person, or both. A caller's usage is counted against the quotas of all its accounts,
// which are the caller, the principals in its delegation chain, and the people for whom they work.
type Account struct {
	Key

	// Principal is true for the caller and for each principal in its delegation chain.
	Principal bool
	// Person is true for each person for whom the caller, or a principal in its delegation chain, works. A principal
	// without an owner counts as a person.
	Person bool
}

// Accounts contains all accounts against which one caller's usage is counted. Each key occurs once, and the caller's
// key is first. The usage of an agent is counted against the principals that created it, directly or indirectly, and
// against the people for whom these principals work. Therefore a caller can't increase its quota by creating agents.
// The zero value has no accounts. Accounts are immutable and safe for concurrent use.
type Accounts struct {
	// inline contains the accounts of a caller without an allocation. If a caller has more accounts, overflow contains all
	// of them.
	inline   [2]Account
	n        int
	overflow []Account
	root     Key
}

// AccountsOf returns the accounts against which the usage of the caller p is counted.
func AccountsOf(p *identityv1.Principal) Accounts {
	var a Accounts
	a.root = Person(p)
	a.add(Account{Key: Of(p), Principal: true})
	a.add(Account{Key: a.root, Person: true})
	for _, behind := range p.GetChain() {
		a.root = Person(behind)
		a.add(Account{Key: Of(behind), Principal: true})
		a.add(Account{Key: a.root, Person: true})
	}
	return a
}

// AccountsOfKey returns the accounts of a caller of whom only the key is known.
func AccountsOfKey(who Key) Accounts {
	var a Accounts
	a.root = who
	a.add(Account{Key: who, Principal: true, Person: true})
	return a
}

func (a *Accounts) add(one Account) {
	all := a.All()
	if at := slices.IndexFunc(all, func(has Account) bool { return has.Key == one.Key }); at >= 0 {
		all[at].Principal, all[at].Person = all[at].Principal || one.Principal, all[at].Person || one.Person
		return
	}
	switch {
	case a.overflow != nil:
		a.overflow = append(a.overflow, one)
	case a.n < len(a.inline):
		a.inline[a.n] = one
		a.n++
	default:
		a.overflow = append(slices.Clone(a.inline[:]), one)
	}
}

// All returns the accounts, with the caller's account first. The slice must not be modified.
func (a *Accounts) All() []Account {
	if a.overflow != nil {
		return a.overflow
	}
	return a.inline[:a.n]
}

// Caller returns the key of the caller, or the zero key if there is no caller.
func (a *Accounts) Caller() Key {
	if a.n == 0 {
		return Key{}
	}
	return a.inline[0].Key
}

// Root returns the key of the person behind the last principal in the caller's delegation chain. Fair queues treat all
// callers with the same root as one caller. If there is no caller, Root returns the zero key.
func (a *Accounts) Root() Key { return a.root }
