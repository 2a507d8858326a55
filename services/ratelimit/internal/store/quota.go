package store

import "sync/atomic"

// quota bounds how many of something there are.
type quota struct {
	most int64
	used atomic.Int64
}

// take takes n, or nothing where that is too many.
func (q *quota) take(n int64) bool {
	for {
		used := q.used.Load()
		if n > q.most-used {
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// give gives n back.
func (q *quota) give(n int64) { q.used.Add(-n) }

// has reports whether n could be taken.
func (q *quota) has(n int64) bool { return n <= q.most-q.used.Load() }
