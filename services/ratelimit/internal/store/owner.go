package store

import "sync"

// ownerShare is the part of the room for buckets that one owner may fill: one of so
// many. Who calls decides on the names of buckets, be it a tool's that is not there,
// and is not to use up what others need.
const ownerShare = 20

// An owner is who began buckets that are kept.
type owner struct {
	name string
	used int64
}

// owners bounds how many buckets each owner has. Its lock is taken last, and only
// where buckets begin or are forgotten.
type owners struct {
	mu    sync.Mutex
	most  int64
	named map[string]*owner // those who have any
}

// setUp makes owners ready for use, of a room for so many buckets.
func (o *owners) setUp(room int) {
	o.most = max(1, int64(room)/ownerShare)
	o.named = map[string]*owner{}
}

// take takes n buckets for an owner, 1 or more. It returns nil, and takes nothing,
// where that is too many.
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

// give gives a bucket of an owner back. Who has none left is forgotten.
func (o *owners) give(by *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if by.used--; by.used == 0 {
		delete(o.named, by.name)
	}
}
