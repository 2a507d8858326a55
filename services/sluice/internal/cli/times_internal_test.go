package cli

import (
	"testing"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

func TestSetTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		since, until string
		from, to     time.Time // zero if there is no bound
		ok           bool
	}{
		{"", "", time.Time{}, time.Time{}, true},
		{"2h", "", now.Add(-2 * time.Hour), time.Time{}, true},
		{"7d", "90s", now.Add(-7 * 24 * time.Hour), now.Add(-90 * time.Second), true},
		{"2026-02-28T23:00:00+01:00", "2026-03-01T00:00:00Z", time.Date(2026, 2, 28, 22, 0, 0, 0, time.UTC), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), true},
		{"", "0s", time.Time{}, now, true},
		{"1h", "2h", time.Time{}, time.Time{}, false}, // the end is before the beginning
		{"1h", "1h", time.Time{}, time.Time{}, false},
		{"-1h", "", time.Time{}, time.Time{}, false},
		{"yesterday", "", time.Time{}, time.Time{}, false},
		{"2026-03-01", "", time.Time{}, time.Time{}, false},
		{"", "d", time.Time{}, time.Time{}, false},
		{"99999999d", "", time.Time{}, time.Time{}, false},
		{"9223372036854775807d", "", time.Time{}, time.Time{}, false},
		{"10", "", time.Time{}, time.Time{}, false},
	} {
		filter := new(gatewayv1.DecisionFilter)
		if err := setTimes(filter, tt.since, tt.until, now); (err == nil) != tt.ok {
			t.Errorf("%q to %q: %v", tt.since, tt.until, err)
		}
		if !tt.ok {
			continue
		}
		if (filter.GetSince() == nil) != tt.from.IsZero() || !tt.from.IsZero() && !filter.GetSince().AsTime().Equal(tt.from) ||
			(filter.GetUntil() == nil) != tt.to.IsZero() || !tt.to.IsZero() && !filter.GetUntil().AsTime().Equal(tt.to) {
			t.Errorf("%q to %q is %v", tt.since, tt.until, filter)
		}
	}
}
