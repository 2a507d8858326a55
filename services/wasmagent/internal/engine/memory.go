package engine

// pageSize is that of WebAssembly.
const pageSize = 64 << 10

// linear is a guest's memory, in a place where it can grow without being moved. What it
// does not use yet is no memory of the machine. It is never on Go's heap: the collector
// does not look at it.
type linear struct {
	// all is the place, and used how much of it may be touched.
	all  []byte
	used int64
}

// newLinear returns a memory that may become so large.
func newLinear(most int64) *linear { return &linear{all: reserve(most)} }

// Reallocate implements experimental.LinearMemory. A guest that wants more than it may
// have ends there: one that was told no would go on in a way that depends on the host.
func (l *linear) Reallocate(size uint64) []byte {
	switch {
	case l.all == nil && size > 0:
		panic(ErrSystem)
	case size > uint64(len(l.all)):
		panic(ErrMemory)
	case !grow(l.all, l.used, int64(size)):
		panic(ErrSystem)
	}
	l.used = int64(size)
	return l.all[:size:len(l.all)]
}

// Free implements experimental.LinearMemory.
func (l *linear) Free() {
	release(l.all)
	l.all = nil
}
