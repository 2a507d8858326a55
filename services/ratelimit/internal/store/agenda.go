package store

import "time"

// place is the position of a member in an [agenda]. Embed place in the type of the members.
type place struct {
	index int // in the heap; meaningless if the member is in no agenda
}

func (p *place) stands() *place { return p }

// agenda is a priority queue by due time: a binary heap whose members know their position, so that any member can be
// removed.
type agenda[T interface{ stands() *place }] struct {
	heap []appointment[T]
}

// appointment is a member with its due time. The time is here and not in the member, so that comparing does not touch
// the members' memory.
type appointment[T any] struct {
	due    time.Duration
	member T
}

// next returns the member that is due first. The agenda must not be empty.
func (a *agenda[T]) next() T { return a.heap[0].member }

// isDue reports whether any member is due at now.
func (a *agenda[T]) isDue(now time.Duration) bool {
	return len(a.heap) > 0 && a.heap[0].due <= now
}

// dueOf returns the due time of a member.
func (a *agenda[T]) dueOf(x T) time.Duration { return a.heap[x.stands().index].due }

func (a *agenda[T]) add(x T, due time.Duration) {
	a.heap = append(a.heap, appointment[T]{due: due, member: x})
	a.sift(len(a.heap) - 1)
}

// move changes the due time of a member.
func (a *agenda[T]) move(x T, due time.Duration) {
	i := x.stands().index
	a.heap[i].due = due
	a.sift(i)
}

func (a *agenda[T]) remove(x T) {
	i, last := x.stands().index, len(a.heap)-1
	a.heap[i] = a.heap[last]
	a.heap[last] = appointment[T]{} // for the garbage collector
	a.heap = a.heap[:last]
	if i < last {
		a.sift(i)
	}
}

// sift moves the appointment at i to its position in the heap.
func (a *agenda[T]) sift(i int) {
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

// put stores an appointment at i, and the position in its member.
func (a *agenda[T]) put(i int, x appointment[T]) {
	a.heap[i] = x
	x.member.stands().index = i
}
