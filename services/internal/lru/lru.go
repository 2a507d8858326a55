// Package lru provides a least recently used cache that limits the number of values and their total weight.
package lru

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Cache is a least recently used cache. If the cache is full, a new value replaces the least recently used values. It
// is safe for concurrent use.
type Cache[K comparable, V any] struct {
	maxWeight int
	weigh     func(V) int

	mu     sync.Mutex
	values *simplelru.LRU[K, V]
	weight int
}

// New returns a cache that contains at most number values with a total weight of at most maxWeight. number must be
// positive. weigh returns the weight of a value.
func New[K comparable, V any](number, maxWeight int, weigh func(V) int) *Cache[K, V] {
	r := &Cache[K, V]{maxWeight: maxWeight, weigh: weigh}
	r.values, _ = simplelru.NewLRU(number, func(_ K, v V) { r.weight -= weigh(v) }) // fails only if number is not positive
	return r
}

// Get returns the value for a key, and reports whether the cache contains the key.
func (r *Cache[K, V]) Get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Get(key)
}

// Put sets the value for a key. If the value's weight exceeds the limit, the value is not cached, and the key's
// previous value is removed.
func (r *Cache[K, V]) Put(key K, value V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.values.Remove(key)
	weight := r.weigh(value)
	if weight > r.maxWeight {
		return
	}
	for r.weight+weight > r.maxWeight {
		r.values.RemoveOldest()
	}
	r.weight += weight
	r.values.Add(key, value)
}

// Size returns the number of values and their total weight.
func (r *Cache[K, V]) Size() (values, weight int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Len(), r.weight
}
