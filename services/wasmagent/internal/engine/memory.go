package engine

import (
	"slices"
	"sync"
)

const (
	// pageSize is the size of a WebAssembly page, in bytes.
	pageSize = 64 << 10
	// maxSpares limits the total size, in bytes, of ended guests' memory that is stored for reuse. maxSpare limits the
	// size, in bytes, of one guest's memory that is stored for reuse. The memory must be overwritten with zeroes, which
	// would take too long for larger memories.
	maxSpares = 32 << 20
	maxSpare  = 8 << 20
)

// linearMemory is the memory of a guest. It reserves an address range in which the memory can grow without being moved.
// The operating system provides memory only for the part of the range that was used. The range is not on Go's heap, so
// the garbage collector does not scan it.
type linearMemory struct {
	addressRange
	// used is the current size of the guest's memory, in bytes.
	used int64
	pool *sparePool
}

// An addressRange is an address range for a guest's memory. committed is the size of the part for which the operating
// system has provided memory, in bytes. While no guest uses the range, all its bytes are zero.
type addressRange struct {
	bytes     []byte
	committed int64
}

// sparePool is a pool of address ranges that no guest is using. A guest that gets a range from the pool starts much
// faster, because the operating system has already provided the memory. The zero value is ready to use.
type sparePool struct {
	mu     sync.Mutex
	ranges []addressRange
	bytes  int64
}

// take returns memory for a guest that can grow to at most the given number of bytes.
func (s *sparePool) take(most int64) *linearMemory {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.ranges {
		if int64(len(p.bytes)) == most {
			s.ranges = slices.Delete(s.ranges, i, i+1)
			s.bytes -= p.committed
			return &linearMemory{addressRange: p, pool: s}
		}
	}
	all := reserve(most)
	if all == nil && most > 0 {
		s.releaseAll()
		all = reserve(most)
	}
	return &linearMemory{addressRange: addressRange{bytes: all}, pool: s}
}

// put adds a range, whose bytes must all be zero, to the pool. If the ranges in the pool are larger than maxSpares
// together, put releases the oldest ones.
func (s *sparePool) put(p addressRange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ranges = append(s.ranges, p)
	for s.bytes += p.committed; s.bytes > maxSpares; s.ranges = slices.Delete(s.ranges, 0, 1) {
		s.bytes -= s.ranges[0].committed
		release(s.ranges[0].bytes)
	}
}

func (s *sparePool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseAll()
}

// releaseAll releases all ranges. The caller must hold mu.
func (s *sparePool) releaseAll() {
	for _, p := range s.ranges {
		release(p.bytes)
	}
	s.ranges, s.bytes = nil, 0
}

// Reallocate implements experimental.LinearMemory. If the guest exceeds its limit, Reallocate panics, which ends the
// guest. If memory.grow reported a failure instead, the guest would continue, and its result would depend on the host.
func (l *linearMemory) Reallocate(size uint64) []byte {
	switch {
	case l.bytes == nil && size > 0:
		panic(ErrSystem)
	case size > uint64(len(l.bytes)):
		panic(ErrMemory)
	case !grow(l.bytes, l.committed, int64(size)):
		if l.pool.close(); !grow(l.bytes, l.committed, int64(size)) { // try again after releasing the spare ranges
			panic(ErrSystem)
		}
	}
	l.used, l.committed = int64(size), max(l.committed, int64(size))
	return l.bytes[:size:len(l.bytes)]
}

// Free implements experimental.LinearMemory. It adds the memory to the pool, unless the memory is too large.
func (l *linearMemory) Free() {
	if l.committed > 0 && l.committed <= maxSpare {
		clear(l.bytes[:l.used])
		l.pool.put(l.addressRange)
	} else {
		release(l.bytes)
	}
	l.addressRange = addressRange{}
}
