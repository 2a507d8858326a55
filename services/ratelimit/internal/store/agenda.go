package store

import "time"

// place is where something stands in an [agenda]. Embed it in what is kept there.
type place struct {
	index int // in the heap; meaningless outside of one
}

func (p *place) stands() *place { return p }

// agenda is a queue by due time: a binary heap whose members know their place, so
// that any of them can leave.
type agenda[T interface{ stands() *place }] struct {
	heap []appointment[T]
}

// appointment is a member and when it is due. The time is kept here, and not in
// the member, so that comparing touches no members.
type appointment[T any] struct {
	due    time.Duration
	member T
}

// next returns the member that is due first. There must be one.
func (a *agenda[T]) next() T { return a.heap[0].member }

// isDue reports whether any member is due at now.
func (a *agenda[T]) isDue(now time.Duration) bool {
	return len(a.heap) > 0 && a.heap[0].due <= now
}

// dueOf returns when a member is due.
func (a *agenda[T]) dueOf(x T) time.Duration { return a.heap[x.stands().index].due }

// add takes x in.
func (a *agenda[T]) add(x T, due time.Duration) {
	a.heap = append(a.heap, appointment[T]{due: due, member: x})
	a.sift(len(a.heap) - 1)
}

// move gives a member another due time.
func (a *agenda[T]) move(x T, due time.Duration) {
	i := x.stands().index
	a.heap[i].due = due
	a.sift(i)
}

// remove takes a member out.
func (a *agenda[T]) remove(x T) {
	i, last := x.stands().index, len(a.heap)-1
	a.heap[i] = a.heap[last]
	a.heap[last] = appointment[T]{} // for the garbage collector
	a.heap = a.heap[:last]
	if i < last {
		a.sift(i)
	}
}

// sift moves what stands at i to where it belongs.
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

// put writes an appointment down and tells its member where.
func (a *agenda[T]) put(i int, x appointment[T]) {
	a.heap[i] = x
	x.member.stands().index = i
}
