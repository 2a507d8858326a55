package principal

import (
	"slices"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// An Account is a principal, a person, or both, against whose quota a caller's use counts.
type Account struct {
	Key

	// Principal is true for the caller itself and for each principal of its chain.
	Principal bool
	// Person is true for each person that the caller or a principal of its chain works for. A principal without an
	// owner is its own person.
	Person bool
}

// Accounts are all accounts that one caller's use counts against, each key once: the caller first. An agent counts
// against the principals that created it, at any depth, and against the person that they work for, so that a caller
// gains nothing by creating agents. The zero value has no accounts. They do not change, and are safe for concurrent
// use.
type Accounts struct {
	// few contains the accounts of most callers without an allocation; more contains all of them if they do not fit
	// into few.
	few  [2]Account
	n    int
	more []Account
	root Key
}

// AccountsOf returns the accounts of a caller.
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

// Alone returns the accounts of a principal of which only the key is known.
func Alone(who Key) Accounts {
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
	case a.more != nil:
		a.more = append(a.more, one)
	case a.n < len(a.few):
		a.few[a.n] = one
		a.n++
	default:
		a.more = append(slices.Clone(a.few[:]), one)
	}
}

// All returns the accounts, the caller's own first. The slice is read-only.
func (a *Accounts) All() []Account {
	if a.more != nil {
		return a.more
	}
	return a.few[:a.n]
}

// Caller returns the key of the caller; the zero key if there is none.
func (a *Accounts) Caller() Key {
	if a.n == 0 {
		return Key{}
	}
	return a.few[0].Key
}

// Root returns the key of the person behind the last principal of the chain, which identifies the owner if callers
// take turns. The zero key means that there is no caller.
func (a *Accounts) Root() Key { return a.root }
