package journal

import (
	"testing"
	"time"
)

// The intent and the outcome of a call take about 1,325 bytes together.
func TestRemainingTime(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		room, used int64
		within     time.Duration
		least      time.Duration
		most       time.Duration
	}{
		"300,000 calls a day":        {1 << 30, 300_000 * 1325, day, 2*day + 16*time.Hour, 2*day + 17*time.Hour},
		"the same within an hour":    {1 << 30, 12_500 * 1325, time.Hour, 2*day + 16*time.Hour, 2*day + 17*time.Hour},
		"a call a day":               {1 << 30, 1325, day, 100 * 365 * day, 1<<63 - 1},
		"no records":                 {1 << 30, 0, day, 0, 0},
		"no time":                    {1 << 30, 1, 0, 0, 0},
		"the clock was set back":     {1 << 30, 1, -day, 0, 0},
		"no room":                    {0, 1, day, 0, 0},
		"more than a duration holds": {1 << 60, 1, 1 << 60, 1<<62 - 1, 1<<63 - 1},
	} {
		if got := remainingTime(tt.room, tt.used, tt.within); got < tt.least || got > tt.most {
			t.Errorf("%s: %v, want %v to %v", name, got, tt.least, tt.most)
		}
	}
}
