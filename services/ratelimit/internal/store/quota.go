package store

import "sync/atomic"

// quota is a counter with a maximum. It is safe for concurrent use.
type quota struct {
	limit int64
	used  atomic.Int64
}

// take adds n to the counter, unless the maximum would be exceeded. It reports whether it added n.
func (q *quota) take(n int64) bool {
	for {
		used := q.used.Load()
		if n > q.limit-used {
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

func (q *quota) give(n int64) { q.used.Add(-n) }

func (q *quota) has(n int64) bool { return n <= q.limit-q.used.Load() }
