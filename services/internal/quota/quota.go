// Package quota counts what callers hold of something shared, such as processes, requests in flight or calls
// that wait. One use counts against the caller, against every principal of its chain and against the persons
// that they work for, so that no caller holds more by making agents.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// ErrFull means that one of a caller's accounts holds as much as it may. Compare with errors.Is.
var ErrFull = errors.New("the share is used up")

// PersonFactor is how many times the share of one principal a person has, over all principals with that
// owner, where a counter has no reason for another factor. An operator gives a person several tokens on
// purpose; an agent that another caller makes is no such gift, and counts against its maker's share.
const PersonFactor = 4

// Limits are how much one account may hold. Each is at least 1.
type Limits struct {
	// Principal bounds a principal together with all agents that it stands behind.
	Principal int
	// Person bounds all principals together that work for one person.
	Person int
}

// For returns the limits of which a principal's is n and a person's [PersonFactor] times n.
func For(n int) Limits { return Limits{Principal: n, Person: PersonFactor * n} }

// A Full says whose share is used up. It is an [ErrFull].
type Full struct {
	// Account is whose share it is, and Caller who asked.
	Account, Caller principal.Key
	// Person is true where it is the person's share, and false where it is the principal's.
	Person bool
	// Held is how much the account holds, of Limit.
	Held, Limit int
	// What is held, in the plural, such as "processes".
	What string
}

// Error implements error. It names nobody but the caller and those in its chain, and of another tenant
// nobody and no number.
func (f *Full) Error() string {
	if f.Account.Tenant != f.Caller.Tenant {
		return "a principal of another tenant that this caller works for holds as many " + f.What + " as it may"
	}
	name := strconv.QuoteToGraphic(f.Account.Subject)
	name = name[1 : len(name)-1]
	group := name + " and agents made by " + name
	if f.Person {
		group = name + " and all that work for " + name
	}
	return fmt.Sprintf("%s hold %d of %d %s", group, f.Held, f.Limit, f.What)
}

// Is implements the interface of [errors.Is].
func (f *Full) Is(target error) bool { return target == ErrFull }

// place is a key in one of the places that a tally tells apart.
type place struct {
	principal.Key

	in string
}

// Why returns whose share is used up, and of what, where err holds a [*Full]; empty where it holds none.
func Why(err error) string {
	if full, ok := errors.AsType[*Full](err); ok {
		return full.Error()
	}
	return ""
}

// held is what one key holds: as a principal and as a person.
type held struct{ principal, person int }

// A Tally is what each key holds, without a lock: a counter with state of its own keeps it under that one's.
// The zero value is not ready, [NewTally] is.
type Tally struct {
	what   string
	limits Limits
	by     map[place]held
}

// NewTally returns an empty tally of what is named in the plural.
func NewTally(what string, l Limits) *Tally {
	return &Tally{what: what, limits: l, by: make(map[place]held)}
}

// Take counts n more against all of the accounts, or, where one of them has no room, against none. Without
// any account it refuses. Errors: a [*Full].
func (t *Tally) Take(of *principal.Accounts, n int) error { return t.TakeIn("", of, n) }

// Give counts n less against all of the accounts that they were taken for.
func (t *Tally) Give(of *principal.Accounts, n int) { t.GiveIn("", of, n) }

// Count counts n more against all of the accounts without refusing: what is held already, whoever may hold it.
func (t *Tally) Count(of *principal.Accounts, n int) { t.add("", of, n) }

// TakeIn is [Tally.Take] where each account has its share in each of several places, such as servers.
func (t *Tally) TakeIn(in string, of *principal.Accounts, n int) error {
	if full := t.full(in, of, n); full != nil {
		return full
	}
	t.add(in, of, n)
	return nil
}

// GiveIn is [Tally.Give] for what was taken with [Tally.TakeIn].
func (t *Tally) GiveIn(in string, of *principal.Accounts, n int) { t.add(in, of, -n) }

// Full returns the account that has no room for n more, of several the one furthest behind the caller; nil
// where all have.
func (t *Tally) Full(of *principal.Accounts, n int) *Full { return t.full("", of, n) }

func (t *Tally) full(in string, of *principal.Accounts, n int) *Full {
	all := of.All()
	if len(all) == 0 {
		return &Full{What: t.what}
	}
	for i := len(all) - 1; i >= 0; i-- {
		a, has := &all[i], t.by[place{all[i].Key, in}]
		switch {
		case a.Principal && has.principal+n > t.limits.Principal:
			return &Full{Account: a.Key, Caller: all[0].Key, What: t.what, Held: has.principal, Limit: t.limits.Principal}
		case a.Person && has.person+n > t.limits.Person:
			return &Full{Account: a.Key, Caller: all[0].Key, What: t.what, Held: has.person, Limit: t.limits.Person, Person: true}
		}
	}
	return nil
}

func (t *Tally) add(in string, of *principal.Accounts, n int) {
	all := of.All()
	for i := range all {
		at := place{all[i].Key, in}
		has := t.by[at]
		if all[i].Principal {
			has.principal += n
		}
		if all[i].Person {
			has.person += n
		}
		if has == (held{}) {
			delete(t.by, at)
			continue
		}
		t.by[at] = has
	}
}

// Len returns how many keys hold something, in each place.
func (t *Tally) Len() int { return len(t.by) }

// A Quota is a [Tally] that is safe for concurrent use. Make it with [New].
type Quota struct {
	mu    sync.Mutex
	tally *Tally
}

// New returns an empty quota of what is named in the plural.
func New(what string, l Limits) *Quota { return &Quota{tally: NewTally(what, l)} }

// Take is [Tally.Take].
func (q *Quota) Take(of *principal.Accounts, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tally.Take(of, n)
}

// Give is [Tally.Give].
func (q *Quota) Give(of *principal.Accounts, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tally.Give(of, n)
}

// Len is [Tally.Len].
func (q *Quota) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tally.Len()
}
