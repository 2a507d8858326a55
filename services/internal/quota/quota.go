// Package quota counts how much each caller uses of a shared resource, such as processes, requests in flight or waiting
// calls. Usage is counted against the caller, against every principal in its delegation chain, and against the people
// for whom these principals work. Therefore a caller can't use more by creating agents.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// ErrFull means that the caller can't use more, because one of the quotas against which its usage is counted is used
// up. Use errors.Is to test for it.
var ErrFull = errors.New("the share is used up")

// PersonFactor is the quota of a person, as a multiple of the quota of one principal. The person's quota covers all
// principals that the person owns. It is higher because an operator may give a person several tokens. The usage of
// agents is counted against the caller that created them. Some quotas use another factor.
const PersonFactor = 4

// Limits contains the maximum usage of one account. Both fields must be at least 1.
type Limits struct {
	// Principal is the limit of a principal, together with all agents that act on its behalf.
	Principal int
	// Person is the limit of all principals that work for one person together.
	Person int
}

// For returns Limits of n for a principal and PersonFactor times n for a person.
func For(n int) Limits { return Limits{Principal: n, Person: PersonFactor * n} }

// A FullError reports that a quota is used up. It matches [ErrFull] with errors.Is.
type FullError struct {
	// Account is the account whose quota is used up. Caller is the account of the caller.
	Account, Caller principal.Key
	// Person is true if the account's quota as a person is used up, and false if its quota as a principal is used up.
	Person bool
	// Held is the current usage of the account. Limit is the maximum usage.
	Held, Limit int
	// What is the plural name of the counted items, for example "processes".
	What string
}

// Error implements error. The message names only the caller and principals in the caller's delegation chain. For an
// account of another tenant, the message contains neither a name nor a number.
func (f *FullError) Error() string {
	if f.Account.Tenant != f.Caller.Tenant {
		return "a principal of another tenant that this caller works for has the maximum number of " + f.What
	}
	name := strconv.QuoteToGraphic(f.Account.Subject)
	name = name[1 : len(name)-1]
	group := name + " and agents made by " + name
	if f.Person {
		group = name + " and all that work for " + name
	}
	return fmt.Sprintf("%s hold %d of %d %s", group, f.Held, f.Limit, f.What)
}

// Is reports whether target is [ErrFull]. [errors.Is] calls it.
func (f *FullError) Is(target error) bool { return target == ErrFull }

// scopedKey identifies an account within a scope, such as a server. A tally counts each scope separately.
type scopedKey struct {
	principal.Key

	in string
}

// Reason returns the message of the [*FullError] in err, or "" if err contains none.
func Reason(err error) string {
	if full, ok := errors.AsType[*FullError](err); ok {
		return full.Error()
	}
	return ""
}

// usage contains how many items are charged to one key as a principal, and how many as a person.
type usage struct{ principal, person int }

// A Tally counts the usage of each key. It has no mutex, so callers must not use it concurrently. Create one with
// [NewTally].
type Tally struct {
	what   string
	limits Limits
	by     map[scopedKey]usage
}

// NewTally returns an empty tally. what is the plural name of the counted items.
func NewTally(what string, l Limits) *Tally {
	return &Tally{what: what, limits: l, by: make(map[scopedKey]usage)}
}

// Acquire adds n to the usage of all accounts of a caller. If that would exceed a limit, or if there is no account, it
// adds nothing and returns a [*FullError].
func (t *Tally) Acquire(of *principal.Accounts, n int) error { return t.AcquireIn("", of, n) }

// Release subtracts n from the usage of all accounts of a caller.
func (t *Tally) Release(of *principal.Accounts, n int) { t.ReleaseIn("", of, n) }

// Add adds n to the usage of all accounts of a caller without checking the limits. It is for items that are already in
// use.
func (t *Tally) Add(of *principal.Accounts, n int) { t.add("", of, n) }

// AcquireIn is like [Tally.Acquire], but counts the usage within a scope, for example a server. Each scope has a
// separate quota.
func (t *Tally) AcquireIn(in string, of *principal.Accounts, n int) error {
	if full := t.full(in, of, n); full != nil {
		return full
	}
	t.add(in, of, n)
	return nil
}

// ReleaseIn is like [Tally.Release], but for items that were acquired with [Tally.AcquireIn].
func (t *Tally) ReleaseIn(in string, of *principal.Accounts, n int) { t.add(in, of, -n) }

// Full returns an error if one of a caller's accounts can't use n more items, and nil otherwise. If there are several
// such accounts, the error is about the last one in the delegation chain.
func (t *Tally) Full(of *principal.Accounts, n int) *FullError { return t.full("", of, n) }

func (t *Tally) full(in string, of *principal.Accounts, n int) *FullError {
	all := of.All()
	if len(all) == 0 {
		return &FullError{What: t.what}
	}
	for i := len(all) - 1; i >= 0; i-- {
		a, has := &all[i], t.by[scopedKey{all[i].Key, in}]
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
		at := scopedKey{all[i].Key, in}
		has := t.by[at]
		if all[i].Principal {
			has.principal += n
		}
		if all[i].Person {
			has.person += n
		}
		if has == (usage{}) {
			delete(t.by, at)
			continue
		}
		t.by[at] = has
	}
}

// Len returns the number of keys whose usage is not zero. A key is counted once for each scope.
func (t *Tally) Len() int { return len(t.by) }

// A Quota is a [Tally] with a mutex. It is safe for concurrent use. Create one with [New].
type Quota struct {
	mu    sync.Mutex
	tally *Tally
}

// New returns an empty quota. what is the plural name of the counted items.
func New(what string, l Limits) *Quota { return &Quota{tally: NewTally(what, l)} }

// Acquire is like [Tally.Acquire].
func (q *Quota) Acquire(of *principal.Accounts, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tally.Acquire(of, n)
}

// Release is like [Tally.Release].
func (q *Quota) Release(of *principal.Accounts, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tally.Release(of, n)
}

// Len is like [Tally.Len].
func (q *Quota) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.tally.Len()
}
