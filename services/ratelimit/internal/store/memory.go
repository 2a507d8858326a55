package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bounds is the capacity of a [Memory]. If the capacity is used up, Reserve returns ErrFull. Buckets in use are not
// evicted, because calls could then exceed their limits. The zero value is invalid.
type Bounds struct {
	// Buckets is the maximum number of stored buckets. It must be at least 1. A bucket uses about 250 bytes, and up to 4
	// KB more for exact times.
	Buckets int
	// Reservations is the maximum number of stored reservations. It must be at least 1. A reservation with one limit uses
	// about 400 bytes.
	Reservations int
}

// Memory is a [Store] in the memory of the process. It starts no goroutine and needs no Close, because empty buckets
// and expired reservations are removed when other buckets and reservations are added.
//
// Reservations and buckets are divided into shards. Each shard has a mutex. A method first locks at most one shard of
// reservations. It then locks shards of buckets in ascending order of their indexes.
type Memory struct {
	origin       time.Time // times are durations since origin, on the monotonic clock
	buckets      buckets
	reservations reservations
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store with the given capacity.
func NewMemory(capacity Bounds) (*Memory, error) {
	if capacity.Buckets < 1 || capacity.Reservations < 1 {
		return nil, fmt.Errorf("the capacity of a limit store must be at least 1 bucket and 1 reservation, is %d and %d", capacity.Buckets, capacity.Reservations)
	}
	m := &Memory{origin: time.Now()}
	m.buckets.setUp(capacity.Buckets)
	m.reservations.setUp(capacity.Reservations)
	return m, nil
}

// Size returns the number of stored buckets and reservations. It counts empty buckets and expired reservations that
// were not yet removed.
func (m *Memory) Size() Bounds {
	return Bounds{Buckets: int(m.buckets.room.used.Load()), Reservations: int(m.reservations.room.used.Load())}
}

// now returns the current time on the monotonic clock. Only this clock determines whether a reservation is granted. The
// wall clock is used only for results. Except in sweep, lock the necessary mutexes before calling now, because the time
// would be out of date after waiting for a mutex.
func (m *Memory) now() time.Duration { return time.Since(m.origin) }

// Reserve implements [Store].
func (m *Memory) Reserve(ctx context.Context, r ReserveRequest) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := checkReservation(&r); err != nil {
		return Result{}, err
	}
	result, err := m.reserve(&r)
	if errors.Is(err, ErrFull) && m.sweep() {
		return m.reserve(&r)
	}
	return result, err
}

func (m *Memory) reserve(r *ReserveRequest) (Result, error) {
	home := m.reservations.shardOf(r.Key)
	home.mu.Lock()
	defer home.mu.Unlock()
	var few [4]bucketRef
	spots, set := m.buckets.refs(r.Limits, few[:0])
	m.buckets.lock(set)
	defer m.buckets.unlock(set)

	wall := time.Now()
	now := wall.Sub(m.origin)
	home.tick(now)
	home.sweep(2)
	existing := home.alive(home.keyed[r.Key])
	if existing != nil && !existing.matches(r.Limits) {
		return Result{}, ErrReused
	}
	result, err := check(now, r.Limits, spots)
	switch {
	case err != nil:
		return Result{}, err
	case existing != nil:
		return result.repeat(existing.Reservation), nil
	case !result.Granted:
		return result, nil
	}
	if result.Reservation, err = m.grant(home, wall.Round(0), r, spots); err != nil {
		return Result{}, err
	}
	return result.granted(r.Limits), nil
}

// check returns the result for the limits without taking units. It sets spots[i].bucket to the bucket of limits[i].
func check(now time.Duration, limits []Limit, spots []bucketRef) (Result, error) {
	for i := range spots {
		spots[i].shard.tick(now)
		spots[i].shard.sweep(2) // a limit adds at most one bucket, so two removals suffice
	}
	result := Result{Granted: true, Remaining: make([]int64, len(limits))}
	for i := range limits {
		v, err := spots[i].check(&limits[i])
		if err != nil {
			return Result{}, err
		}
		result.add(i, v)
	}
	result.RetryAfter = (result.RetryAfter + time.Millisecond - 1).Truncate(time.Millisecond)
	return result, nil
}

// grant takes the units and creates the reservation. The units must fit.
func (m *Memory) grant(home *reservationShard, wall time.Time, r *ReserveRequest, spots []bucketRef) (Reservation, error) {
	var missing int64
	for i := range spots {
		if spots[i].bucket == nil {
			missing++
		}
	}
	if !m.reservations.room.take(1) {
		return Reservation{}, fmt.Errorf("%w: %d reservations exist", ErrFull, m.reservations.room.limit)
	}
	by, err := m.buckets.takeQuota(r.Owner, missing)
	if err != nil {
		m.reservations.room.give(1)
		return Reservation{}, err
	}
	number, id := m.reservations.nextID(home)
	l := &reservation{
		Reservation: Reservation{ID: id, Granted: wall, Expires: wall.Add(r.Lifetime)},
		key:         r.Key,
		number:      number,
	}
	l.charges = l.few[:0]
	for i := range spots {
		l.charges = append(l.charges, spots[i].take(&r.Limits[i], by))
	}
	home.add(l, home.seen+r.Lifetime)
	return l.Reservation, nil
}

// sweep removes all empty buckets and all expired reservations. It reports whether the store now has capacity for
// another bucket and another reservation.
func (m *Memory) sweep() bool {
	now := m.now()
	for i := range m.reservations.shards {
		s := &m.reservations.shards[i]
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
	return m.reservations.room.has(1) && m.buckets.room.has(1)
}

// Renew implements [Store].
func (m *Memory) Renew(ctx context.Context, id string, d time.Duration) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	if err := checkLifetime(d); err != nil {
		return time.Time{}, err
	}
	home, number, ok := m.reservations.parseID(id)
	if !ok {
		return time.Time{}, fmt.Errorf("reservation %q: %w", id, ErrNotFound)
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	now := home.tick(m.now())
	l := home.find(id, number)
	if l == nil {
		return time.Time{}, fmt.Errorf("reservation %q: %w", id, ErrNotFound)
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
	home, number, ok := m.reservations.parseID(id)
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
		m.buckets.giveBack(l.charges)
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
	spots, set := m.buckets.refs(limits, nil)
	m.buckets.lock(set)
	defer m.buckets.unlock(set)
	result, err := check(m.now(), limits, spots)
	return result.Remaining, err
}

// Reset implements [Store].
func (m *Memory) Reset(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := &m.buckets.shards[m.buckets.shardOf(name)]
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
