package window

import (
	"testing"
	"time"
)

// TestLog_EntriesAreBoundedWhenLimitsChange checks that a log has at most one entry per unit of an exact limit, and at
// most one entry per slot of a higher limit.
func TestLog_EntriesAreBoundedWhenLimitsChange(t *testing.T) {
	t.Parallel()
	const most = MaxExact + slots + 2
	log := New(time.Minute)
	var now time.Duration
	for i := range 100_000 {
		limit := int64(MaxExact)
		if i/500%2 == 0 {
			limit = 1 << 40
		}
		now += time.Minute / 700
		log.Take(now, 1, limit)
		if log.entries.count > most || len(log.entries.buf) > 2*most {
			t.Fatalf("step %d: %d entries in a buffer for %d", i, log.entries.count, len(log.entries.buf))
		}
	}
}

func TestRing_GrowsWithItsEntries(t *testing.T) {
	t.Parallel()
	log := New(time.Minute)
	if log.entries.buf != nil {
		t.Error("an empty log has a buffer")
	}
	for i := range 10 {
		log.Take(time.Duration(i), 1, 10)
		if room := len(log.entries.buf); room > 2*(i+1) || room > 10 {
			t.Errorf("a buffer for %d entries with %d taken", room, i+1)
		}
	}
}

func TestLog_UnitsOfOneInstantShareAnEntry(t *testing.T) {
	t.Parallel()
	log := New(time.Minute)
	for range 200 {
		log.Take(7, 1, 200)
	}
	if log.entries.count != 1 || log.used != 200 {
		t.Errorf("%d entries with %d units, want 1 with 200", log.entries.count, log.used)
	}
}
