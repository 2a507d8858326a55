package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
)

// setTimes sets the period of a filter to the values of --since and --until. It ignores empty values.
func setTimes(filter *gatewayv1.DecisionFilter, since, until string, now time.Time) error {
	for _, one := range []struct {
		flag, text string
		into       **timestamppb.Timestamp
	}{{"--since", since, &filter.Since}, {"--until", until, &filter.Until}} {
		if one.text == "" {
			continue
		}
		at, err := parseTime(one.text, now)
		if err != nil {
			return fmt.Errorf("%s %w", one.flag, err)
		}
		*one.into = timestamppb.New(at)
	}
	if filter.Since != nil && filter.Until != nil && !filter.Since.AsTime().Before(filter.Until.AsTime()) {
		return fmt.Errorf("--since %s is not before --until %s, so no record matches", since, until)
	}
	return nil
}

// parseTime parses an RFC 3339 time, or a duration that is subtracted from now. The duration has Go's format, or is a
// number of days such as 7d.
func parseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	ago, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int64
		n, err = strconv.ParseInt(days, 10, 32)
		ago = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || ago < 0 || ago > 100*365*24*time.Hour {
		return time.Time{}, fmt.Errorf("%q is neither a time such as 2026-03-01T12:00:00Z nor a duration such as 15m, 2h or 7d", text)
	}
	return now.Add(-ago), nil
}
