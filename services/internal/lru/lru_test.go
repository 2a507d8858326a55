package lru_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/internal/lru"
)

func length(s string) int { return len(s) }

// The cache evicts the least recently read values first, both when there are too many values and when their total
// weight is too high.
func TestPut_EvictsTheLeastRecentlyUsedValues(t *testing.T) {
	t.Parallel()
	c := lru.New[string](2, 10, length)
	c.Put("a", "1")
	c.Put("b", "1")
	c.Get("a")
	c.Put("c", "1")
	if _, ok := c.Get("b"); ok {
		t.Error("the value that was unused longest is still there")
	}
	if v, ok := c.Get("a"); !ok || v != "1" {
		t.Errorf("the value that was read is %q, %t", v, ok)
	}
	c.Put("d", "1234567890")
	if n, weight := c.Size(); n != 1 || weight != 10 {
		t.Errorf("after a value with the whole weight there are %d values with weight %d", n, weight)
	}
}

// A value that is too heavy is not cached. The previous value of the key is removed.
func TestPut_TooHeavyValueRemovesThePrevious(t *testing.T) {
	t.Parallel()
	c := lru.New[string](2, 3, length)
	c.Put("a", "1")
	c.Put("a", "1234")
	if v, ok := c.Get("a"); ok {
		t.Errorf("the key has the value %q", v)
	}
	if n, weight := c.Size(); n != 0 || weight != 0 {
		t.Errorf("there are %d values with weight %d", n, weight)
	}
}

// The test performs random operations and checks the number of values, their total weight and each key's last value.
func TestPut_LimitsHoldAfterAnySequence(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const values, weight = 4, 12
		c, last := lru.New[int](values, weight, length), make(map[int]string)
		for range rapid.IntRange(1, 60).Draw(t, "operations") {
			key, value := rapid.IntRange(0, 6).Draw(t, "key"), rapid.StringMatching(`[a-c]{0,14}`).Draw(t, "value")
			if rapid.Bool().Draw(t, "read") {
				if got, ok := c.Get(key); ok && got != last[key] {
					t.Fatalf("key %d has the value %q, want %q", key, got, last[key])
				}
				continue
			}
			c.Put(key, value)
			last[key] = value
			if n, total := c.Size(); n > values || total > weight {
				t.Fatalf("there are %d values with weight %d", n, total)
			}
		}
		sum := 0
		for key := range 7 {
			v, _ := c.Get(key)
			sum += len(v)
		}
		if _, total := c.Size(); total != sum {
			t.Fatalf("the weight is %d, but the values weigh %d", total, sum)
		}
	})
}
