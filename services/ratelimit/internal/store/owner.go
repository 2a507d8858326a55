package store

import "sync"

// ownerShare is the divisor that gives the quota of one owner: a 20th of all buckets. A caller chooses the names of
// buckets, for example by calling tools that don't exist, and must not use up the capacity that others need.
const ownerShare = 20

// An owner is a principal that began buckets which are still stored.
type owner struct {
	name string
	used int64
}

// owners limits the number of buckets of each owner. Its lock is taken last, and only to begin or remove buckets.
type owners struct {
	mu    sync.Mutex
	most  int64
	named map[string]*owner // the owners that have buckets
}

// setUp initializes owners for a capacity of room buckets.
func (o *owners) setUp(room int) {
	o.most = max(1, int64(room)/ownerShare)
	o.named = map[string]*owner{}
}

// take takes n buckets for an owner; n is 1 or more. It returns nil, and takes nothing, if the owner would exceed its
// quota.
func (o *owners) take(name string, n int64) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := o.named[name]
	if by == nil {
		by = &owner{name: name}
	}
	if n > o.most-by.used {
		return nil
	}
	if by.used == 0 {
		o.named[name] = by
	}
	by.used += n
	return by
}

// give gives one bucket of an owner back. An owner without buckets is removed.
func (o *owners) give(by *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if by.used--; by.used == 0 {
		delete(o.named, by.name)
	}
}
