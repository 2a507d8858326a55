package store

import (
	"crypto/rand"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A lease is a grant that is neither settled nor expired. Whoever touches it holds
// the lock of its shard.
type lease struct {
	place
	Lease
	key    string
	number uint64
	takes  []take
	few    [2]take // where takes is, if that is enough: a limit and its cap
}

// answers reports whether the lease was granted for just these limits.
func (l *lease) answers(limits []Limit) bool {
	if len(limits) != len(l.takes) {
		return false
	}
	for i := range limits {
		if !l.takes[i].is(&limits[i]) {
			return false
		}
	}
	return true
}

// leaseShard holds the leases of some keys.
type leaseShard struct {
	mu       sync.Mutex
	keyed    map[string]*lease
	numbered map[uint64]*lease
	expiring agenda[*lease]
	room     *quota
	last     uint64        // number of the newest lease; its low bits are the shard
	seen     time.Duration // latest instant shown
	_        [64]byte      // keeps neighbours off each other's cache lines
}

// tick moves the shard's clock to now and returns it. It never goes back.
func (s *leaseShard) tick(now time.Duration) time.Duration {
	s.seen = max(s.seen, now)
	return s.seen
}

// find returns the lease of an ID whose number is known, nil where it has ended.
func (s *leaseShard) find(id string, number uint64) *lease {
	l := s.numbered[number]
	if l == nil || l.ID != id {
		return nil // a number can be written in several ways, an ID in one
	}
	return s.alive(l)
}

// alive returns l, or nil where it has expired; then it is forgotten.
func (s *leaseShard) alive(l *lease) *lease {
	if l == nil || s.expiring.dueOf(l) > s.seen {
		return l
	}
	s.end(l)
	return nil
}

// keep takes a new lease in, for which there is room.
func (s *leaseShard) keep(l *lease, expires time.Duration) {
	s.keyed[l.key] = l
	s.numbered[l.number] = l
	s.expiring.add(l, expires)
}

// end forgets a lease.
func (s *leaseShard) end(l *lease) {
	delete(s.keyed, l.key)
	delete(s.numbered, l.number)
	s.expiring.remove(l)
	s.room.give(1)
}

// sweep forgets expired leases, no more than most.
func (s *leaseShard) sweep(most int) {
	for ; most > 0 && s.expiring.isDue(s.seen); most-- {
		s.end(s.expiring.next())
	}
}

// leases is all leases, by the hash of their key.
type leases struct {
	seed   maphash.Seed
	prefix string // of every ID; no two processes share it
	room   quota
	shards [shards]leaseShard
}

// setUp makes leases ready for use.
func (l *leases) setUp(most int) {
	l.seed = maphash.MakeSeed()
	l.prefix = rand.Text() + "-"
	l.room.most = int64(most)
	for i := range l.shards {
		s := &l.shards[i]
		s.keyed, s.numbered, s.room, s.last = map[string]*lease{}, map[uint64]*lease{}, &l.room, uint64(i)
	}
}

// of returns the shard that a key belongs to.
func (l *leases) of(key string) *leaseShard {
	return &l.shards[maphash.String(l.seed, key)%shards]
}

// named returns the shard and the number in an ID; ok is false where no store like
// this one has made it.
func (l *leases) named(id string) (s *leaseShard, number uint64, ok bool) {
	digits, ok := strings.CutPrefix(id, l.prefix)
	if !ok {
		return nil, 0, false
	}
	number, err := strconv.ParseUint(digits, 36, 64)
	return &l.shards[number%shards], number, err == nil
}

// nextID returns a new number in s and the ID that holds it.
func (l *leases) nextID(s *leaseShard) (uint64, string) {
	s.last += shards
	buf := make([]byte, 0, 40)
	buf = append(buf, l.prefix...)
	return s.last, string(strconv.AppendUint(buf, s.last, 36))
}
