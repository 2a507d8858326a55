package authn

import (
	"sync"
	"time"
)

// cache stores values until they expire. When it is full, it drops all values, because callers can create them again.
type cache[K comparable, V any] struct {
	mu    sync.RWMutex
	items map[K]cached[V]
	size  int
}

type cached[V any] struct {
	value   V
	expires time.Time
}

func newCache[K comparable, V any](size int) *cache[K, V] {
	return &cache[K, V]{items: make(map[K]cached[V]), size: size}
}

func (c *cache[K, V]) get(key K, now time.Time) (V, bool) {
	c.mu.RLock()
	item, ok := c.items[key]
	c.mu.RUnlock()
	if !ok || !now.Before(item.expires) {
		var none V
		return none, false
	}
	return item.value, true
}

// getText is like [cache.get], but the key is a byte slice. getText does not copy the key.
func getText(c *cache[string, string], key []byte, now time.Time) (string, bool) {
	c.mu.RLock()
	item, ok := c.items[string(key)]
	c.mu.RUnlock()
	return item.value, ok && now.Before(item.expires)
}

func (c *cache[K, V]) put(key K, value V, expires time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.items) >= c.size {
		clear(c.items)
	}
	c.items[key] = cached[V]{value: value, expires: expires}
}
