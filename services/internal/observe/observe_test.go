package observe_test

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

func TestUntil_Time(t *testing.T) {
	t.Parallel()
	for text, want := range map[observe.Until]time.Time{
		"":                          {},
		"2026-12-20":                time.Date(2026, 12, 20, 0, 0, 0, 0, time.UTC),
		"2026-12-20T18:00:00+02:00": time.Date(2026, 12, 20, 16, 0, 0, 0, time.UTC),
		"2026-12-20 18:00":          {},
		"20.12.2026":                {},
		"2026-02-30":                {},
	} {
		if got := text.Time(); !got.Equal(want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

// TestCheck_AcceptsAtMostThirtyDays checks that the limit is exact to the nanosecond.
func TestCheck_AcceptsAtMostThirtyDays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now  time.Time
		want bool
	}{{now, true}, {now.Add(-time.Nanosecond), false}} {
		if fault := observe.Check(observe.Observe, "2026-12-28T12:00:00Z", tt.now); (fault == nil) != tt.want {
			t.Errorf("Check at %v = %v", tt.now, fault)
		}
	}
}

func TestWarn_ChangesWhenTheTimeHasCome(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 12, 20, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now time.Time
		key string
	}{{end.Add(-1), "mode"}, {end, "until"}} {
		if w := observe.Warn("rule", observe.Observe, "2026-12-20", tt.now); w == nil || w.Key != tt.key {
			t.Errorf("Warn at %v = %v, want a warning about %s", tt.now, w, tt.key)
		}
	}
	if w := observe.Warn("rule", observe.Enforce, "", end); w != nil {
		t.Errorf("Warn without observe = %v", w)
	}
}
