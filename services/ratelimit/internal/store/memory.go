package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds is the capacity of a [Memory]. Beyond it reservations get ErrFull: evicting a bucket in use would let calls
// pass above their limit. The zero value is refused.
type Bounds struct {
	// Buckets is how many buckets may be stored, 1 or more. A bucket takes about 250 bytes, and up to 4 KB more when it
	// is full of exact times.
	Buckets int
	// Leases is how many leases may be stored, 1 or more. A lease with one limit takes about 400 bytes.
	Leases int
}

// Memory is a [Store] in the memory of the process. It starts no goroutine and needs no Close: empty buckets and
// expired leases are removed when others are added.
//
// There are two kinds of locks, both in shards. The lock of a lease's shard is taken first, and only one of them; then
// those of buckets, in order.
type Memory struct {
	origin  time.Time // instants count from here, on the monotonic clock
	buckets buckets
	leases  leases
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store with a capacity.
func NewMemory(most Bounds) (*Memory, error) {
	if most.Buckets < 1 || most.Leases < 1 {
		return nil, fmt.Errorf("a limit store needs a capacity of at least 1 bucket and 1 lease, not %d and %d", most.Buckets, most.Leases)
	}
	m := &Memory{origin: time.Now()}
	m.buckets.setUp(most.Buckets)
	m.leases.setUp(most.Leases)
	return m, nil
}

// Size returns how many buckets and leases are stored now. Some may be empty or expired and not yet removed.
func (m *Memory) Size() Bounds {
	return Bounds{Buckets: int(m.buckets.room.used.Load()), Leases: int(m.leases.room.used.Load())}
}

// now reads the monotonic clock, by which the store decides; the wall clock is only for answers. Callers except sweep
// read it under the locks, so that a caller that waited for them does not use an old time.
func (m *Memory) now() time.Duration { return time.Since(m.origin) }

// Reserve implements [Store].
func (m *Memory) Reserve(ctx context.Context, r Reservation) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	if err := checkReservation(&r); err != nil {
		return Answer{}, err
	}
	answer, err := m.reserve(&r)
	if errors.Is(err, ErrFull) && m.sweep() {
		return m.reserve(&r)
	}
	return answer, err
}

// reserve is one attempt of Reserve.
func (m *Memory) reserve(r *Reservation) (Answer, error) {
	home := m.leases.of(r.Key)
	home.mu.Lock()
	defer home.mu.Unlock()
	var few [4]spot
	spots, set := m.buckets.spots(r.Limits, few[:0])
	m.buckets.lock(set)
	defer m.buckets.unlock(set)

	wall := time.Now()
	now := wall.Sub(m.origin)
	home.tick(now)
	home.sweep(2)
	held := home.alive(home.keyed[r.Key])
	if held != nil && !held.answers(r.Limits) {
		return Answer{}, ErrReused
	}
	answer, err := ask(now, r.Limits, spots)
	switch {
	case err != nil:
		return Answer{}, err
	case held != nil:
		return answer.repeat(held.Lease), nil
	case !answer.Granted:
		return answer, nil
	}
	if answer.Lease, err = m.grant(home, wall.Round(0), r, spots); err != nil {
		return Answer{}, err
	}
	return answer.granted(r.Limits), nil
}

// ask returns the answer on all limits, and sets the buckets of spots. If the answer is a grant, nothing is taken yet.
func ask(now time.Duration, limits []Limit, spots []spot) (Answer, error) {
	for i := range spots {
		spots[i].shard.tick(now)
		spots[i].shard.sweep(2) // a limit adds at most one bucket, so sweeping keeps up
	}
	answer := Answer{Granted: true, Remaining: make([]int64, len(limits))}
	for i := range limits {
		v, err := spots[i].ask(&limits[i])
		if err != nil {
			return Answer{}, err
		}
		answer.add(i, v)
	}
	answer.RetryAfter = (answer.RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
	return answer, nil
}

// grant takes the costs, which fit, and creates the lease.
func (m *Memory) grant(home *leaseShard, wall time.Time, r *Reservation, spots []spot) (Lease, error) {
	var missing int64
	for i := range spots {
		if spots[i].bucket == nil {
			missing++
		}
	}
	if !m.leases.room.take(1) {
		return Lease{}, fmt.Errorf("%w: %d leases live", ErrFull, m.leases.room.most)
	}
	by, err := m.buckets.begin(r.Owner, missing)
	if err != nil {
		m.leases.room.give(1)
		return Lease{}, err
	}
	number, id := m.leases.nextID(home)
	l := &lease{
		Lease:  Lease{ID: id, Granted: wall, Expires: wall.Add(r.Lease)},
		key:    r.Key,
		number: number,
	}
	l.takes = l.few[:0]
	for i := range spots {
		l.takes = append(l.takes, spots[i].take(&r.Limits[i], by))
	}
	home.keep(l, home.seen+r.Lease)
	return l.Lease, nil
}

// sweep removes everything that is empty or expired, and reports whether there is capacity for a lease and a bucket
// now.
func (m *Memory) sweep() bool {
	now := m.now()
	for i := range m.leases.shards {
		s := &m.leases.shards[i]
		s.mu.Lock()
		s.tick(now)
		s.sweep(len(s.keyed))
		s.mu.Unlock()
	}
	for i := range m.buckets.shards {
		s := &m.buckets.shards[i]
		s.mu.Lock()
		s.tick(now)
		s.sweep(len(s.named))
		s.mu.Unlock()
	}
	return m.leases.room.has(1) && m.buckets.room.has(1)
}

// Renew implements [Store].
func (m *Memory) Renew(ctx context.Context, id string, d time.Duration) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	if err := checkLease(d); err != nil {
		return time.Time{}, err
	}
	home, number, ok := m.leases.named(id)
	if !ok {
		return time.Time{}, fmt.Errorf("lease %q: %w", id, ErrNotFound)
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	now := home.tick(m.now())
	l := home.find(id, number)
	if l == nil {
		return time.Time{}, fmt.Errorf("lease %q: %w", id, ErrNotFound)
	}
	if now+d > home.expiring.dueOf(l) {
		home.expiring.move(l, now+d)
		l.Expires = time.Now().Round(0).Add(d)
	}
	return l.Expires, nil
}

// Settle implements [Store].
func (m *Memory) Settle(ctx context.Context, id string, outcome Outcome) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if outcome != Sent && outcome != NeverSent {
		return false, fmt.Errorf("%w: outcome %d is neither sent nor never sent", ErrInvalid, outcome)
	}
	home, number, ok := m.leases.named(id)
	if !ok {
		return false, nil
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	home.tick(m.now())
	l := home.find(id, number)
	if l == nil {
		return false, nil
	}
	home.end(l)
	if outcome == NeverSent {
		m.buckets.giveBack(l.takes)
	}
	return true, nil
}

// Peek implements [Store].
func (m *Memory) Peek(ctx context.Context, limits []Limit) ([]int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkLimits(limits); err != nil {
		return nil, err
	}
	spots, set := m.buckets.spots(limits, nil)
	m.buckets.lock(set)
	defer m.buckets.unlock(set)
	answer, err := ask(m.now(), limits, spots)
	return answer.Remaining, err
}

// Reset implements [Store].
func (m *Memory) Reset(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &m.buckets.shards[m.buckets.of(name)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick(m.now())
	b := s.named[name]
	if b == nil {
		return fmt.Errorf("bucket %q: %w", name, ErrNotFound)
	}
	empty := b.log.Empty(s.seen)
	s.evict(b)
	if empty {
		return fmt.Errorf("bucket %q: %w", name, ErrNotFound)
	}
	return nil
}
