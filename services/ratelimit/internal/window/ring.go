package window

import (
	"cmp"
	"sort"
	"time"
)

// firstEntries is what a ring has room for at first: most keys are used once or
// twice and then never again.
const firstEntries = 2

// entry is a number of units that count from the same time.
type entry struct {
	at    time.Duration
	units int64
}

// ring is a queue of entries in ascending order of time, each time once. The zero
// value is empty and holds no memory; it grows as it fills.
type ring struct {
	buf   []entry
	head  int // index in buf of the oldest
	count int
}

// at returns the i-th oldest entry, 0 <= i < count.
func (r *ring) at(i int) *entry {
	i += r.head
	if i >= len(r.buf) {
		i -= len(r.buf)
	}
	return &r.buf[i]
}

// last returns the newest entry, nil where there is none.
func (r *ring) last() *entry {
	if r.count == 0 {
		return nil
	}
	return r.at(r.count - 1)
}

// push adds the newest entry. The ring doubles, but takes no more room than most
// entries need.
func (r *ring) push(e entry, most int64) {
	if r.count == len(r.buf) {
		size := max(firstEntries, 2*r.count)
		r.grow(max(int(min(int64(size), most)), r.count+1))
	}
	r.count++
	*r.at(r.count - 1) = e
}

// grow moves the entries to a buffer of the given size.
func (r *ring) grow(size int) {
	buf := make([]entry, size)
	n := copy(buf, r.buf[r.head:])
	copy(buf[n:], r.buf[:r.head])
	r.buf, r.head = buf, 0
}

// find returns the place of the entry with the given time.
func (r *ring) find(at time.Duration) (int, bool) {
	return sort.Find(r.count, func(i int) int {
		return cmp.Compare(at, r.at(i).at)
	})
}

// remove takes out the i-th oldest entry. Taking the oldest is cheap; another one
// costs a move of all that are newer.
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
