package store

import (
	"crypto/rand"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A reservation is a granted request that is neither settled nor expired. It is guarded by the mutex of its shard.
type reservation struct {
	slot
	Reservation
	key     string
	number  uint64
	charges []charge
	few     [2]charge // the array behind charges if there are at most two limits, for example a limit and its cap
}

func (l *reservation) matches(limits []Limit) bool {
	if len(limits) != len(l.charges) {
		return false
	}
	for i := range limits {
		if !l.charges[i].matches(&limits[i]) {
			return false
		}
	}
	return true
}

// reservationShard contains the reservations whose keys hash to the shard. It is guarded by mu.
type reservationShard struct {
	mu       sync.Mutex
	keyed    map[string]*reservation
	numbered map[uint64]*reservation
	expiring dueQueue[*reservation]
	room     *quota
	last     uint64        // number of the newest reservation; its low bits are the index of the shard
	seen     time.Duration // the latest time passed to tick
	_        [64]byte      // prevents shards from sharing cache lines
}

// tick moves the shard's clock to the given time and returns the clock's time. The clock never goes back.
func (s *reservationShard) tick(now time.Duration) time.Duration {
	s.seen = max(s.seen, now)
	return s.seen
}

// find returns the reservation with the given ID, or nil if the reservation has ended. number is the number in the ID.
func (s *reservationShard) find(id string, number uint64) *reservation {
	l := s.numbered[number]
	if l == nil || l.ID != id {
		return nil // the reservation does not exist, or the ID spells the number differently
	}
	return s.alive(l)
}

// alive returns l if it has not expired. Otherwise it removes l and returns nil.
func (s *reservationShard) alive(l *reservation) *reservation {
	if l == nil || s.expiring.dueOf(l) > s.seen {
		return l
	}
	s.end(l)
	return nil
}

// add adds a new reservation. The caller must have acquired the quota for the reservation.
func (s *reservationShard) add(l *reservation, expires time.Duration) {
	s.keyed[l.key] = l
	s.numbered[l.number] = l
	s.expiring.add(l, expires)
}

// end removes a reservation and releases its quota.
func (s *reservationShard) end(l *reservation) {
	delete(s.keyed, l.key)
	delete(s.numbered, l.number)
	s.expiring.remove(l)
	s.room.give(1)
}

func (s *reservationShard) sweep(n int) {
	for ; n > 0 && s.expiring.isDue(s.seen); n-- {
		s.end(s.expiring.next())
	}
}

// reservations contains all reservations, divided into shards. The hash of a reservation's key determines the
// reservation's shard.
type reservations struct {
	seed   maphash.Seed
	prefix string // the prefix of every ID; different processes have different prefixes
	room   quota
	shards [shards]reservationShard
}

// setUp initializes l for the given maximum number of reservations.
func (l *reservations) setUp(limit int) {
	l.seed = maphash.MakeSeed()
	l.prefix = rand.Text() + "-"
	l.room.limit = int64(limit)
	for i := range l.shards {
		s := &l.shards[i]
		s.keyed, s.numbered, s.room, s.last = map[string]*reservation{}, map[uint64]*reservation{}, &l.room, uint64(i)
	}
}

func (l *reservations) shardOf(key string) *reservationShard {
	return &l.shards[maphash.String(l.seed, key)%shards]
}

// parseID returns the shard of the reservation with the given ID, and the number that the ID contains. The last result
// is false if this store did not create the ID.
func (l *reservations) parseID(id string) (s *reservationShard, number uint64, ok bool) {
	digits, ok := strings.CutPrefix(id, l.prefix)
	if !ok {
		return nil, 0, false
	}
	number, err := strconv.ParseUint(digits, 36, 64)
	return &l.shards[number%shards], number, err == nil
}

// nextID returns a new number for a reservation in s, and the ID that contains the number.
func (l *reservations) nextID(s *reservationShard) (uint64, string) {
	s.last += shards
	buf := make([]byte, 0, 40)
	buf = append(buf, l.prefix...)
	return s.last, string(strconv.AppendUint(buf, s.last, 36))
}
