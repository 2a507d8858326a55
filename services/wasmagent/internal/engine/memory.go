package engine

import (
	"slices"
	"sync"
)

const (
	// pageSize is that of WebAssembly.
	pageSize = 64 << 10
	// maxSpares is how much memory of guests that ended is kept for others, in bytes, and
	// maxSpare how much of one: it is written over with zeroes.
	maxSpares = 32 << 20
	maxSpare  = 8 << 20
)

// linear is a guest's memory, in a place where it can grow without being moved. What it
// does not use yet is no memory of the machine. It is never on Go's heap: the collector
// does not look at it.
type linear struct {
	place
	// used is how much of it may be touched.
	used   int64
	spares *spares
}

// A place is where memory may be. ready is how much of it is memory of the machine; what no
// guest uses is zero.
type place struct {
	all   []byte
	ready int64
}

// spares are places that no guest uses: for a guest that takes one the machine has the memory
// at hand, which is most of the time that its start takes. The zero value is ready.
type spares struct {
	mu    sync.Mutex
	free  []place
	bytes int64
}

// linear returns a memory that may become so large.
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

// keep keeps a place that is all zero, and lets the oldest go that are too much then.
func (s *spares) keep(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, p)
	for s.bytes += p.ready; s.bytes > maxSpares; s.free = slices.Delete(s.free, 0, 1) {
		s.bytes -= s.free[0].ready
		release(s.free[0].all)
	}
}

// close lets all places go.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop is close for who has the lock.
func (s *spares) drop() {
	for _, p := range s.free {
		release(p.all)
	}
	s.free, s.bytes = nil, 0
}

// Reallocate implements experimental.LinearMemory. A guest that wants more than it may
// have ends there: one that was told no would go on in a way that depends on the host.
func (l *linear) Reallocate(size uint64) []byte {
	switch {
	case l.all == nil && size > 0:
		panic(ErrSystem)
	case size > uint64(len(l.all)):
		panic(ErrMemory)
	case !grow(l.all, l.ready, int64(size)):
		if l.spares.close(); !grow(l.all, l.ready, int64(size)) { // what others left goes before what one needs
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
