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

// shards is how many parts buckets and leases are kept in, each with a lock. It is
// the number of bits of a shardSet.
const shards = 64

// A bucket is the window of one name. Whoever touches it holds the lock of its shard.
type bucket struct {
	place
	name  string
	owner *owner
	shard uint8
	kept  bool // false once evicted, while leases may still point here
	log   window.Log
}

// bucketShard holds the buckets of some names.
type bucketShard struct {
	mu    sync.Mutex
	named map[string]*bucket
	idle  agenda[*bucket] // due when they were to be empty, as it looked once
	all   *buckets
	seen  time.Duration // latest instant shown
	_     [64]byte      // keeps neighbours off each other's cache lines
}

// tick moves the shard's clock to now. It never goes back, so a bucket that was
// evicted as empty is empty at any later tick.
func (s *bucketShard) tick(now time.Duration) { s.seen = max(s.seen, now) }

// find returns the bucket of a limit, nil where nothing is kept under its name.
// An empty bucket is as good as none, so it may be asked for with any window.
func (s *bucketShard) find(l *Limit) (*bucket, error) {
	b := s.named[l.Bucket]
	if b == nil || b.log.Length() == l.Window {
		return b, nil
	}
	if b.log.Empty(s.seen) {
		s.evict(b)
		return nil, nil
	}
	return nil, fmt.Errorf("%w: bucket %q is kept with a window of %v, not %v", ErrInvalid, l.Bucket, b.log.Length(), l.Window)
}

// evict forgets a bucket.
func (s *bucketShard) evict(b *bucket) {
	delete(s.named, b.name)
	s.idle.remove(b)
	b.kept = false
	s.all.owners.give(b.owner)
	s.all.room.give(1)
}

// keep takes a new bucket in, for which there is room. Something was taken from it.
func (s *bucketShard) keep(b *bucket) {
	b.kept = true
	s.named[b.name] = b
	s.idle.add(b, b.log.EmptyFrom())
}

// sweep looks at no more than most buckets that may have become empty and evicts
// those that are. A bucket in use comes up once per window.
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

// buckets is all buckets, by the hash of their name.
type buckets struct {
	seed   maphash.Seed
	room   quota
	owners owners
	shards [shards]bucketShard
}

// setUp makes buckets ready for use.
func (b *buckets) setUp(most int) {
	b.seed = maphash.MakeSeed()
	b.room.most = int64(most)
	b.owners.setUp(most)
	for i := range b.shards {
		s := &b.shards[i]
		s.named, s.all = map[string]*bucket{}, b
	}
}

// begin takes room for n buckets of an owner, or for none. The owner is nil where n
// is 0.
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

// shardSet is a set of shards, one bit each. Locks are taken from bit 0 upwards,
// by all, so that no two wait for each other.
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

// of returns the shard that a name belongs to.
func (b *buckets) of(name string) uint8 {
	return uint8(maphash.String(b.seed, name) % shards)
}

// spots finds out where the buckets of limits belong. It appends to into, which
// saves an allocation where it has room.
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
	bucket *bucket // nil: not there
}

// ask looks the bucket up and asks for the limit's cost, without taking it.
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

// take takes the limit's cost, which was asked for under the same lock and fits. A
// bucket that is not there begins as that of an owner, who has room for it.
func (s *spot) take(l *Limit, by *owner) take {
	b := s.bucket
	if b == nil {
		// The name outlives the message that it came in.
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

// is reports whether it was taken for just this limit.
func (t *take) is(l *Limit) bool {
	return t.bucket.name == l.Bucket && t.bucket.log.Length() == l.Window && t.cost == l.Cost && t.max == l.Max
}

// giveBack undoes what was taken. A bucket that was evicted or reset since is no
// longer the one that counts.
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
