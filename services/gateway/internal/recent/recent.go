// Package recent keeps values that were used last.
package recent

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Recent keeps the values that were used last, as many as fit: who brings many new ones
// pushes out what nobody uses. It is safe for concurrent use.
type Recent[K comparable, V any] struct {
	// most is how much the values may weigh together.
	most  int
	weigh func(V) int

	mu     sync.Mutex
	values *simplelru.LRU[K, V]
	weight int
}

// New returns one for a number of values, which is positive, and for their weight.
func New[K comparable, V any](number, most int, weigh func(V) int) *Recent[K, V] {
	r := &Recent[K, V]{most: most, weigh: weigh}
	r.values, _ = simplelru.NewLRU(number, func(_ K, v V) { r.weight -= weigh(v) }) // fails where the number is not positive
	return r
}

// Get returns a key's value, and whether there is one.
func (r *Recent[K, V]) Get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Get(key)
}

// Put keeps a value in place of the key's other one; none that weighs too much alone.
func (r *Recent[K, V]) Put(key K, value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values.Remove(key)
	weight := r.weigh(value)
	if weight > r.most {
		return
	}
	for r.weight+weight > r.most {
		r.values.RemoveOldest()
	}
	r.weight += weight
	r.values.Add(key, value)
}

// Size is how many values there are, and what they weigh together.
func (r *Recent[K, V]) Size() (values, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Len(), r.weight
}
