package window

import (
	"cmp"
	"sort"
	"time"
)

// firstEntries is the initial size of a ring's buffer. It is small because most buckets are used only once or twice.
const firstEntries = 2

// entry is a number of units that were taken at the same time.
type entry struct {
	at    time.Duration
	units int64
}

// ring is a queue of entries in ascending order of time, with distinct times. The zero value is empty and has no
// buffer. The buffer grows with the entries.
type ring struct {
	buf   []entry
	head  int // index in buf of the oldest entry
	count int
}

// at returns the entry with index i. The oldest entry has the index 0.
func (r *ring) at(i int) *entry {
	i += r.head
	if i >= len(r.buf) {
		i -= len(r.buf)
	}
	return &r.buf[i]
}

// last returns the newest entry, or nil if the ring is empty.
func (r *ring) last() *entry {
	if r.count == 0 {
		return nil
	}
	return r.at(r.count - 1)
}

// push adds an entry. The entry must be newer than all other entries. If the buffer is full, push doubles its size, but
// to at most limit entries. If the buffer already has this size, push adds space for one entry.
func (r *ring) push(e entry, limit int64) {
	if r.count == len(r.buf) {
		size := max(firstEntries, 2*r.count)
		r.grow(max(int(min(int64(size), limit)), r.count+1))
	}
	r.count++
	*r.at(r.count - 1) = e
}

func (r *ring) grow(size int) {
	buf := make([]entry, size)
	n := copy(buf, r.buf[r.head:])
	copy(buf[n:], r.buf[:r.head])
	r.buf, r.head = buf, 0
}

// find returns the index of the entry with the given time, and reports whether such an entry exists.
func (r *ring) find(at time.Duration) (int, bool) {
	return sort.Find(r.count, func(i int) int {
		return cmp.Compare(at, r.at(i).at)
	})
}

// remove removes the entry with index i. Unless the entry is the oldest, remove moves all newer entries.
func (r *ring) remove(i int) {
	if i > 0 {
		for ; i < r.count-1; i++ {
			*r.at(i) = *r.at(i + 1)
		}
		r.count--
		return
	}
	r.head++
	if r.head == len(r.buf) {
		r.head = 0
	}
	r.count--
}
