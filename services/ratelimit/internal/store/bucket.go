package store

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/ratelimit/internal/window"
)

// shards is the number of bucket shards, and also the number of reservation shards. It equals the number of bits in a
// shardSet.
const shards = 64

// A bucket is a sliding window with a name. It is guarded by the mutex of its shard.
type bucket struct {
	slot
	name   string
	owner  *owner
	shard  uint8
	stored bool // false after the bucket was evicted; reservations may still refer to it
	log    window.Log
}

// bucketShard contains the buckets whose names hash to the shard. It is guarded by mu.
type bucketShard struct {
	mu    sync.Mutex
	named map[string]*bucket
	idle  dueQueue[*bucket] // ordered by the times at which sweep checks the buckets
	all   *buckets
	seen  time.Duration // the latest time passed to tick
	_     [64]byte      // prevents shards from sharing cache lines
}

// tick moves the shard's clock to the given time. The clock never moves back. Therefore a bucket that was empty when it
// was evicted would also be empty at any later time.
func (s *bucketShard) tick(now time.Duration) { s.seen = max(s.seen, now) }

// find returns the limit's bucket, or nil if the bucket does not exist. If the bucket has a window of a different
// length than the limit, find evicts the bucket if it is empty, and otherwise returns an error.
func (s *bucketShard) find(l *Limit) (*bucket, error) {
	b := s.named[l.Bucket]
	if b == nil || b.log.Length() == l.Window {
		return b, nil
	}
	if b.log.Empty(s.seen) {
		s.evict(b)
		return nil, nil
	}
	return nil, fmt.Errorf("%w: bucket %q is in use with a window of %v, not %v", ErrInvalid, l.Bucket, b.log.Length(), l.Window)
}

func (s *bucketShard) evict(b *bucket) {
	delete(s.named, b.name)
	s.idle.remove(b)
	b.stored = false
	s.all.owners.give(b.owner)
	s.all.room.give(1)
}

// add adds a new bucket from which units were taken. The caller must have called takeQuota for the bucket.
func (s *bucketShard) add(b *bucket) {
	b.stored = true
	s.named[b.name] = b
	s.idle.add(b, b.log.EmptyFrom())
}

// sweep checks at most n buckets that might be empty, and evicts the empty ones. A bucket in use is checked once per
// window.
func (s *bucketShard) sweep(n int) {
	for ; n > 0 && s.idle.isDue(s.seen); n-- {
		b := s.idle.next()
		if b.log.Empty(s.seen) {
			s.evict(b)
			continue
		}
		s.idle.move(b, b.log.EmptyFrom())
	}
}

// buckets contains all buckets, divided into shards. The hash of a bucket's name determines the bucket's shard.
type buckets struct {
	seed   maphash.Seed
	room   quota
	owners owners
	shards [shards]bucketShard
}

// setUp initializes b for the given maximum number of buckets.
func (b *buckets) setUp(limit int) {
	b.seed = maphash.MakeSeed()
	b.room.limit = int64(limit)
	b.owners.setUp(limit)
	for i := range b.shards {
		s := &b.shards[i]
		s.named, s.all = map[string]*bucket{}, b
	}
}

// takeQuota charges n new buckets to the store's quota and to the owner's quota. If this would exceed one of the
// quotas, takeQuota charges nothing and returns an error. If n is 0, takeQuota returns nil for the owner and no error.
func (b *buckets) takeQuota(owner string, n int64) (*owner, error) {
	if n == 0 {
		return nil, nil
	}
	if !b.room.take(n) {
		return nil, fmt.Errorf("%w: %d buckets are in use", ErrFull, b.room.limit)
	}
	by := b.owners.take(owner, n)
	if by == nil {
		b.room.give(n)
		return nil, fmt.Errorf("%w for %q: an owner may create %d of %d buckets", ErrFull, owner, b.owners.limit, b.room.limit)
	}
	return by, nil
}

// shardSet is a set of shard indexes. Shards are locked in ascending order of their indexes to prevent deadlocks.
type shardSet uint64

func (b *buckets) lock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		b.shards[bits.TrailingZeros64(uint64(set))].mu.Lock()
	}
}

func (b *buckets) unlock(set shardSet) {
	for ; set != 0; set &= set - 1 {
		b.shards[bits.TrailingZeros64(uint64(set))].mu.Unlock()
	}
}

// shardOf returns the index of the shard for the bucket with the given name.
func (b *buckets) shardOf(name string) uint8 {
	return uint8(maphash.String(b.seed, name) % shards)
}

// refs returns references to the limits' buckets, and the set of these buckets' shards. It appends the references to
// the given slice, which saves an allocation if the slice has enough capacity.
func (b *buckets) refs(limits []Limit, into []bucketRef) ([]bucketRef, shardSet) {
	var set shardSet
	for i := range limits {
		at := b.shardOf(limits[i].Bucket)
		set |= 1 << at
		into = append(into, bucketRef{at: at, shard: &b.shards[at]})
	}
	return into, set
}

// A bucketRef refers to the bucket of a limit. The bucket does not have to exist.
type bucketRef struct {
	at     uint8 // the index of the shard
	shard  *bucketShard
	bucket *bucket // nil if the bucket does not exist
}

// check finds the bucket, and returns a verdict on whether the limit's cost fits. It takes no units.
func (s *bucketRef) check(l *Limit) (window.Verdict, error) {
	now := s.shard.seen
	b, err := s.shard.find(l)
	if err != nil {
		return window.Verdict{}, err
	}
	s.bucket = b
	if b == nil {
		log := window.New(l.Window)
		return log.Check(now, l.Cost, l.Max), nil
	}
	return b.log.Check(now, l.Cost, l.Max), nil
}

// take takes the limit's cost from the bucket. The caller must have called check under the same locks, and the cost
// must fit. If the bucket does not exist, take creates the bucket and charges it to the given owner. In that case, the
// caller must have called takeQuota for this owner.
func (s *bucketRef) take(l *Limit, by *owner) charge {
	b := s.bucket
	if b == nil {
		// The name is cloned, so that the bucket does not retain the memory of the request.
		b = &bucket{name: strings.Clone(l.Bucket), owner: by, shard: s.at, log: window.New(l.Window)}
	}
	stamp, ok := b.log.Take(s.shard.seen, l.Cost, l.Max)
	if !ok {
		panic("store: units that fit could not be taken")
	}
	if !b.stored {
		s.shard.add(b)
	}
	return charge{bucket: b, stamp: stamp, cost: l.Cost, max: l.Max}
}

// A charge records the units that a reservation took from one bucket.
type charge struct {
	bucket *bucket
	stamp  time.Duration
	cost   int64
	max    int64
}

// matches reports whether the charge is for a limit that has the same fields as the given limit.
func (t *charge) matches(l *Limit) bool {
	return t.bucket.name == l.Bucket && t.bucket.log.Length() == l.Window && t.cost == l.Cost && t.max == l.Max
}

// giveBack returns the units of charges to their buckets. It skips buckets that were evicted or reset.
func (b *buckets) giveBack(takes []charge) {
	var set shardSet
	for i := range takes {
		set |= 1 << takes[i].bucket.shard
	}
	b.lock(set)
	defer b.unlock(set)
	for i := range takes {
		t := &takes[i]
		if !t.bucket.stored {
			continue
		}
		t.bucket.log.Undo(t.stamp, t.cost)
		if s := &b.shards[t.bucket.shard]; t.bucket.log.Empty(s.seen) {
			s.evict(t.bucket)
		}
	}
}
