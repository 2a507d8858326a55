package engine

import (
	"slices"
	"sync"
)

const (
	// pageSize is the size of a page of WebAssembly, in bytes.
	pageSize = 64 << 10
	// maxSpares bounds the total memory that is kept for reuse after its guests ended, and maxSpare that of one guest,
	// both in bytes. The bound on one guest limits the time for overwriting its memory with zeroes.
	maxSpares = 32 << 20
	maxSpare  = 8 << 20
)

// linear is the memory of a guest. It reserves an address range in which it can grow without being moved. The operating
// system provides memory only for the part that was used. The range is not on Go's heap, so the garbage collector does
// not scan it.
type linear struct {
	place
	// used is the present size of the guest's memory, in bytes.
	used   int64
	spares *spares
}

// A place is an address range for a guest's memory. ready is the size of the part for which the operating system has
// provided memory, in bytes. While no guest uses the place, all of it is zero.
type place struct {
	all   []byte
	ready int64
}

// spares are places that no guest uses. A guest that takes one starts much faster, because the operating system has
// provided the memory already. The zero value is ready to use.
type spares struct {
	mu    sync.Mutex
	free  []place
	bytes int64
}

// linear returns a memory that can grow to most bytes.
func (s *spares) linear(most int64) *linear {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.free {
		if int64(len(p.all)) == most {
			s.free = slices.Delete(s.free, i, i+1)
			s.bytes -= p.ready
			return &linear{place: p, spares: s}
		}
	}
	all := reserve(most)
	if all == nil && most > 0 {
		s.drop()
		all = reserve(most)
	}
	return &linear{place: place{all: all}, spares: s}
}

// keep adds a place, which must be all zero. It releases the oldest places if there are more than maxSpares bytes.
func (s *spares) keep(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, p)
	for s.bytes += p.ready; s.bytes > maxSpares; s.free = slices.Delete(s.free, 0, 1) {
		s.bytes -= s.free[0].ready
		release(s.free[0].all)
	}
}

// close releases all places.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop releases all places. The caller holds mu.
func (s *spares) drop() {
	for _, p := range s.free {
		release(p.all)
	}
	s.free, s.bytes = nil, 0
}

// Reallocate implements experimental.LinearMemory. If the guest exceeds its limit, Reallocate panics, which ends the
// guest. A failure as the result of memory.grow would let the guest continue in a way that depends on the host.
func (l *linear) Reallocate(size uint64) []byte {
	switch {
	case l.all == nil && size > 0:
		panic(ErrSystem)
	case size > uint64(len(l.all)):
		panic(ErrMemory)
	case !grow(l.all, l.ready, int64(size)):
		if l.spares.close(); !grow(l.all, l.ready, int64(size)) { // the spare places were released: try again
			panic(ErrSystem)
		}
	}
	l.used, l.ready = int64(size), max(l.ready, int64(size))
	return l.all[:size:len(l.all)]
}

// Free implements experimental.LinearMemory.
func (l *linear) Free() {
	if l.ready > 0 && l.ready <= maxSpare {
		clear(l.all[:l.used])
		l.spares.keep(l.place)
	} else {
		release(l.all)
	}
	l.place = place{}
}
