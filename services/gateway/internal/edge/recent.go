package edge

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// recent keeps the values that were used last, as many as fit: who brings many new ones
// pushes out what nobody uses. It is safe for concurrent use.
type recent[K comparable, V any] struct {
	// most is how much the values may weigh together.
	most  int
	weigh func(V) int

	mu     sync.Mutex
	values *simplelru.LRU[K, V]
	weight int
}

// newRecent returns one for a number of values, which is positive, and for their weight.
func newRecent[K comparable, V any](number, most int, weigh func(V) int) *recent[K, V] {
	r := &recent[K, V]{most: most, weigh: weigh}
	r.values, _ = simplelru.NewLRU(number, func(_ K, v V) { r.weight -= weigh(v) }) // fails where the number is not positive
	return r
}

func (r *recent[K, V]) get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values.Get(key)
}

// put keeps a value in place of the key's other one; none that weighs too much alone.
func (r *recent[K, V]) put(key K, value V) {
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
