package authn

import (
	"sync"
	"time"
)

// cache remembers values until they expire. When it is full it forgets
// everything: what it holds can be made again.
type cache[V any] struct {
	mu    sync.RWMutex
	items map[string]cached[V]
	size  int
}

type cached[V any] struct {
	value   V
	expires time.Time
}

func newCache[V any](size int) *cache[V] {
	return &cache[V]{items: make(map[string]cached[V]), size: size}
}

func (c *cache[V]) get(key string, now time.Time) (V, bool) {
	c.mu.RLock()
	item, ok := c.items[key]
	c.mu.RUnlock()
	if !ok || !now.Before(item.expires) {
		var none V
		return none, false
	}
	return item.value, true
}

func (c *cache[V]) put(key string, value V, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.items) >= c.size {
		clear(c.items)
	}
	c.items[key] = cached[V]{value: value, expires: expires}
}
