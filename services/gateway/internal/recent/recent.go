// Package recent is a cache of the values that were used last, limited by number and weight.
package recent

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Recent caches the values that were used last. New values replace those that were unused longest. It is safe for
// concurrent use.
type Recent[K comparable, V any] struct {
	// most is how much the values may weigh together.
	most  int
	weigh func(V) int

	mu     sync.Mutex
	values *simplelru.LRU[K, V]
	weight int
}

// New returns a cache for this number of values, which must be positive, with a total weight of at most most.
func New[K comparable, V any](number, most int, weigh func(V) int) *Recent[K, V] {
	r := &Recent[K, V]{most: most, weigh: weigh}
	r.values, _ = simplelru.NewLRU(number, func(_ K, v V) { r.weight -= weigh(v) }) // fails only if the number is not positive
	return r
}

// Get returns the value of a key, and whether there is one.
func (r *Recent[K, V]) Get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Get(key)
}

// Put sets the value of a key. A value that is too heavy alone is not cached; the key's old value is removed in any
// case.
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

// Size returns how many values there are, and their total weight.
func (r *Recent[K, V]) Size() (values, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Len(), r.weight
}
