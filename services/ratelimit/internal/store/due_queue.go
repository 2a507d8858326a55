package store

import "time"

// slot is the position of a member in a [dueQueue]. The type of the members must embed slot.
type slot struct {
	index int // the index in the heap; undefined if the member is in no queue
}

func (p *slot) position() *slot { return p }

// dueQueue is a priority queue that is ordered by due time. It is a binary heap. Each member stores its own position,
// so that any member can be removed.
type dueQueue[T interface{ position() *slot }] struct {
	heap []entry[T]
}

// entry is a member with its due time. The due time is stored outside the member, so that comparisons do not access the
// memory of the member.
type entry[T any] struct {
	due    time.Duration
	member T
}

// next returns the member that is due first. The queue must not be empty.
func (a *dueQueue[T]) next() T { return a.heap[0].member }

func (a *dueQueue[T]) isDue(now time.Duration) bool {
	return len(a.heap) > 0 && a.heap[0].due <= now
}

func (a *dueQueue[T]) dueOf(x T) time.Duration { return a.heap[x.position().index].due }

func (a *dueQueue[T]) add(x T, due time.Duration) {
	a.heap = append(a.heap, entry[T]{due: due, member: x})
	a.sift(len(a.heap) - 1)
}

func (a *dueQueue[T]) move(x T, due time.Duration) {
	i := x.position().index
	a.heap[i].due = due
	a.sift(i)
}

func (a *dueQueue[T]) remove(x T) {
	i, last := x.position().index, len(a.heap)-1
	a.heap[i] = a.heap[last]
	a.heap[last] = entry[T]{} // so that the member can be garbage collected
	a.heap = a.heap[:last]
	if i < last {
		a.sift(i)
	}
}

// sift moves the entry at index i to its position in the heap.
func (a *dueQueue[T]) sift(i int) {
	moving := a.heap[i]
	for parent := (i - 1) / 2; i > 0 && moving.due < a.heap[parent].due; parent = (i - 1) / 2 {
		a.put(i, a.heap[parent])
		i = parent
	}
	for {
		child := 2*i + 1
		if child+1 < len(a.heap) && a.heap[child+1].due < a.heap[child].due {
			child++
		}
		if child >= len(a.heap) || moving.due <= a.heap[child].due {
			break
		}
		a.put(i, a.heap[child])
		i = child
	}
	a.put(i, moving)
}

// put stores an entry at index i, and sets the position of its member.
func (a *dueQueue[T]) put(i int, x entry[T]) {
	a.heap[i] = x
	x.member.position().index = i
}
