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

// shards is the number of shards of buckets and of leases, each with a lock. It is the number of bits of a shardSet.
const shards = 64

// A bucket is the window of one name. It is guarded by the lock of its shard.
type bucket struct {
	place
	name  string
	owner *owner
	shard uint8
	kept  bool // false after the bucket was evicted, while leases may still refer to it
	log   window.Log
}

// bucketShard holds the buckets of some names, guarded by mu.
type bucketShard struct {
	mu    sync.Mutex
	named map[string]*bucket
	idle  agenda[*bucket] // due when a bucket becomes empty, as estimated earlier
	all   *buckets
	seen  time.Duration // latest instant seen
	_     [64]byte      // keeps shards in separate cache lines
}

// tick moves the shard's clock to now. The clock never goes back, so a bucket that was evicted as empty stays empty at
// any later tick.
func (s *bucketShard) tick(now time.Duration) { s.seen = max(s.seen, now) }

// find returns the bucket of a limit, or nil if none has its name. An empty bucket with another window is evicted,
// because it is equal to no bucket.
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

// evict removes a bucket.
func (s *bucketShard) evict(b *bucket) {
	delete(s.named, b.name)
	s.idle.remove(b)
	b.kept = false
	s.all.owners.give(b.owner)
	s.all.room.give(1)
}

// keep adds a new bucket, for which the quota was taken. Units were already taken from it.
func (s *bucketShard) keep(b *bucket) {
	b.kept = true
	s.named[b.name] = b
	s.idle.add(b, b.log.EmptyFrom())
}

// sweep checks up to most buckets that may have become empty, and evicts those that are. A bucket in use is checked
// once per window.
func (s *bucketShard) sweep(most int) {
	for ; most > 0 && s.idle.isDue(s.seen); most-- {
		b := s.idle.next()
		if b.log.Empty(s.seen) {
			s.evict(b)
			continue
		}
		s.idle.move(b, b.log.EmptyFrom())
	}
}

// buckets are all buckets, in shards by the hash of their name.
type buckets struct {
	seed   maphash.Seed
	room   quota
	owners owners
	shards [shards]bucketShard
}

// setUp initializes buckets for a capacity of most buckets.
func (b *buckets) setUp(most int) {
	b.seed = maphash.MakeSeed()
	b.room.most = int64(most)
	b.owners.setUp(most)
	for i := range b.shards {
		s := &b.shards[i]
		s.named, s.all = map[string]*bucket{}, b
	}
}

// begin takes the quota of n buckets for an owner, or none. It returns nil if n is 0.
func (b *buckets) begin(owner string, n int64) (*owner, error) {
	if n == 0 {
		return nil, nil
	}
	if !b.room.take(n) {
		return nil, fmt.Errorf("%w: %d buckets are in use", ErrFull, b.room.most)
	}
	by := b.owners.take(owner, n)
	if by == nil {
		b.room.give(n)
		return nil, fmt.Errorf("%w for %q: of %d buckets an owner may begin %d", ErrFull, owner, b.room.most, b.owners.most)
	}
	return by, nil
}

// shardSet is a set of shards, one bit each. All callers lock shards from bit 0 upwards, so that there is no deadlock.
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

// of returns the index of the shard of a name.
func (b *buckets) of(name string) uint8 {
	return uint8(maphash.String(b.seed, name) % shards)
}

// spots returns the places of the buckets of limits. It appends to into, which saves an allocation if into has
// capacity.
func (b *buckets) spots(limits []Limit, into []spot) ([]spot, shardSet) {
	var set shardSet
	for i := range limits {
		at := b.of(limits[i].Bucket)
		set |= 1 << at
		into = append(into, spot{at: at, shard: &b.shards[at]})
	}
	return into, set
}

// A spot is where the bucket of a limit is, or would be.
type spot struct {
	at     uint8
	shard  *bucketShard
	bucket *bucket // nil if the bucket does not exist
}

// ask finds the bucket and returns the verdict on the limit's cost, without taking it.
func (s *spot) ask(l *Limit) (window.Verdict, error) {
	now := s.shard.seen
	b, err := s.shard.find(l)
	if err != nil {
		return window.Verdict{}, err
	}
	s.bucket = b
	if b == nil {
		log := window.New(l.Window)
		return log.Ask(now, l.Cost, l.Max), nil
	}
	return b.log.Ask(now, l.Cost, l.Max), nil
}

// take takes the limit's cost, which fits by an ask under the same lock. A bucket that does not exist is created for an
// owner, whose quota was taken.
func (s *spot) take(l *Limit, by *owner) take {
	b := s.bucket
	if b == nil {
		// The clone does not keep the memory of the request alive.
		b = &bucket{name: strings.Clone(l.Bucket), owner: by, shard: s.at, log: window.New(l.Window)}
	}
	stamp, ok := b.log.Take(s.shard.seen, l.Cost, l.Max)
	if !ok {
		panic("store: units that fit could not be taken")
	}
	if !b.kept {
		s.shard.keep(b)
	}
	return take{bucket: b, stamp: stamp, cost: l.Cost, max: l.Max}
}

// A take is what a lease took from one bucket.
type take struct {
	bucket *bucket
	stamp  time.Duration
	cost   int64
	max    int64
}

// is reports whether the take was for exactly this limit.
func (t *take) is(l *Limit) bool {
	return t.bucket.name == l.Bucket && t.bucket.log.Length() == l.Window && t.cost == l.Cost && t.max == l.Max
}

// giveBack undoes takes. A bucket that was evicted or reset since then no longer counts and is skipped.
func (b *buckets) giveBack(takes []take) {
	var set shardSet
	for i := range takes {
		set |= 1 << takes[i].bucket.shard
	}
	b.lock(set)
	defer b.unlock(set)
	for i := range takes {
		t := &takes[i]
		if !t.bucket.kept {
			continue
		}
		t.bucket.log.Undo(t.stamp, t.cost)
		if s := &b.shards[t.bucket.shard]; t.bucket.log.Empty(s.seen) {
			s.evict(t.bucket)
		}
	}
}
