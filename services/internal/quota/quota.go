// Package quota counts what callers use of something shared, such as processes, requests in flight or waiting calls.
// One use counts against the caller, against every principal of its chain and against the people that they work for,
// so that a caller can't use more by creating agents.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// ErrFull means that one of a caller's accounts has used its quota. Compare with errors.Is.
var ErrFull = errors.New("the share is used up")

// PersonFactor is the quota of a person, over all principals with that owner, as a multiple of the quota of one
// principal, unless a counter has a reason for another factor. An operator gives a person several tokens on purpose;
// an agent that another caller creates counts against its creator's quota.
const PersonFactor = 4

// Limits are how much one account may use. Each is at least 1.
type Limits struct {
	// Principal bounds a principal together with all agents that act on its behalf.
	Principal int
	// Person bounds all principals together that work for one person.
	Person int
}

// For returns limits with n for a principal and [PersonFactor] times n for a person.
func For(n int) Limits { return Limits{Principal: n, Person: PersonFactor * n} }

// A FullError says whose quota is used up. It is an [ErrFull].
type FullError struct {
	// Account is the account whose quota is used up, and Caller the caller.
	Account, Caller principal.Key
	// Person is true if the account's quota as a person is used up, and false if it is that as a principal.
	Person bool
	// Held is how much the account uses of Limit.
	Held, Limit int
	// What is counted, in the plural, such as "processes".
	What string
}

// Error implements error. It names only the caller and principals in its chain. For an account of another tenant it
// contains no name and no number.
func (f *FullError) Error() string {
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
func (f *FullError) Is(target error) bool { return target == ErrFull }

// place is a key in one of the places that a tally counts separately.
type place struct {
	principal.Key

	in string
}

// Why returns whose quota is used up, and of what, if err contains a [*FullError]; otherwise it returns "".
func Why(err error) string {
	if full, ok := errors.AsType[*FullError](err); ok {
		return full.Error()
	}
	return ""
}

// held is how much one key uses: as a principal and as a person.
type held struct{ principal, person int }

// A Tally counts what each key uses, without a lock: the caller must use its own lock. The zero value is not usable;
// create one with [NewTally].
type Tally struct {
	what   string
	limits Limits
	by     map[place]held
}

// NewTally returns an empty tally; what is the plural name of the counted items.
func NewTally(what string, l Limits) *Tally {
	return &Tally{what: what, limits: l, by: make(map[place]held)}
}

// Take counts n more against all of the accounts, or against none if one of them would exceed its limit. Without an
// account it refuses. Errors: a [*FullError].
func (t *Tally) Take(of *principal.Accounts, n int) error { return t.TakeIn("", of, n) }

// Give counts n less against all of the accounts that they were taken for.
func (t *Tally) Give(of *principal.Accounts, n int) { t.GiveIn("", of, n) }

// Count counts n more against all of the accounts without a check of limits, for what is in use already.
func (t *Tally) Count(of *principal.Accounts, n int) { t.add("", of, n) }

// TakeIn is [Tally.Take] with a separate quota in each of several places, such as servers.
func (t *Tally) TakeIn(in string, of *principal.Accounts, n int) error {
	if full := t.full(in, of, n); full != nil {
		return full
	}
	t.add(in, of, n)
	return nil
}

// GiveIn is [Tally.Give] for what was taken with [Tally.TakeIn].
func (t *Tally) GiveIn(in string, of *principal.Accounts, n int) { t.add(in, of, -n) }

// Full returns the account that can't take n more, or nil; if there are several, the last in the chain.
func (t *Tally) Full(of *principal.Accounts, n int) *FullError { return t.full("", of, n) }

func (t *Tally) full(in string, of *principal.Accounts, n int) *FullError {
	all := of.All()
	if len(all) == 0 {
		return &FullError{What: t.what}
	}
	for i := len(all) - 1; i >= 0; i-- {
		a, has := &all[i], t.by[place{all[i].Key, in}]
		switch {
		case a.Principal && has.principal+n > t.limits.Principal:
			return &FullError{Account: a.Key, Caller: all[0].Key, What: t.what, Held: has.principal, Limit: t.limits.Principal}
		case a.Person && has.person+n > t.limits.Person:
			return &FullError{Account: a.Key, Caller: all[0].Key, What: t.what, Held: has.person, Limit: t.limits.Person, Person: true}
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

// Len returns how many keys use something, counted in each place.
func (t *Tally) Len() int { return len(t.by) }

// A Quota is a [Tally] that is safe for concurrent use. Create one with [New].
type Quota struct {
	mu    sync.Mutex
	tally *Tally
}

// New returns an empty quota; what is the plural name of the counted items.
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
