package store

import "sync"

// ownerShare determines the quota of one owner. The quota is a 20th of all buckets. Without a quota, a caller could use
// up the capacity by calling many tools that don't exist, because each tool name gets a bucket.
const ownerShare = 20

// An owner is a principal that created buckets that are still stored.
type owner struct {
	name string
	used int64
}

// owners limits the number of buckets per owner. Its mutex is locked after all other mutexes, and only to create or
// remove buckets.
type owners struct {
	mu    sync.Mutex
	limit int64
	named map[string]*owner // the owners with buckets, by name
}

// setUp initializes o for the given capacity of the store, in buckets.
func (o *owners) setUp(room int) {
	o.limit = max(1, int64(room)/ownerShare)
	o.named = map[string]*owner{}
}

// take adds n new buckets to the count of an owner. n must be at least 1. If the owner would exceed the quota, take
// returns nil and does not change the count.
func (o *owners) take(name string, n int64) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := o.named[name]
	if by == nil {
		by = &owner{name: name}
	}
	if n > o.limit-by.used {
		return nil
	}
	if by.used == 0 {
		o.named[name] = by
	}
	by.used += n
	return by
}

// give subtracts one bucket from the count of an owner. It removes the owner if no buckets are left.
func (o *owners) give(by *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if by.used--; by.used == 0 {
		delete(o.named, by.name)
	}
}
