// Package observe checks the keys `mode` and `until` of policy documents and of the configuration. With `mode:
// observe`, calls are not refused. The decisions that would be made with `mode: enforce` are only recorded.
package observe

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// MaxTime limits how far in the future the time `until` in a file can be when the file is loaded.
const MaxTime = 30 * 24 * time.Hour

// These are the values of `mode`. An empty mode means Enforce.
const (
	Enforce = "enforce"
	Observe = "observe"
)

// Until is the value of `until`. It is a time in the format of RFC 3339, or a date, which means the beginning of that
// day in UTC. It is empty if the key is absent.
type Until string

// Time returns the value as a time. It returns the zero time if the key is absent or has a different format.
func (u Until) Time() time.Time {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, string(u)); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// UnmarshalYAML implements yaml.Unmarshaler. A date needs no quotes, although YAML has a separate type for dates.
func (u *Until) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode || Until(n.Value).Time().IsZero() {
		return strictyaml.Problem{Message: noTime, Suggestion: timeForms}
	}
	*u = Until(n.Value)
	return nil
}

const (
	noTime    = "wanted a date or a time"
	timeForms = "write it as 2026-12-20 or 2026-12-20T18:00:00Z"
)

// Format returns a time as a date if it is midnight in UTC, and otherwise in the format of RFC 3339.
func Format(t time.Time) string {
	t = t.UTC()
	if t.Equal(t.Truncate(24 * time.Hour)) {
		return t.Format(time.DateOnly)
	}
	return t.Format(time.RFC3339)
}

// A Finding is a problem or a warning about the key `mode` or `until`.
type Finding struct {
	// Key is `mode` or `until`.
	Key string
	// Message describes the problem. Suggestion describes how to solve it.
	Message, Suggestion string
}

// Check returns a problem with the values of the keys, or nil if there is none. now is the time at which the file is
// loaded.
func Check(mode string, until Until, now time.Time) *Finding {
	latest := Format(now.Add(MaxTime).Truncate(24 * time.Hour))
	switch {
	case mode != "" && mode != Enforce && mode != Observe:
		return &Finding{"mode", fmt.Sprintf("unknown mode %q", mode), "write observe, or remove it to enforce"}
	case mode != Observe && until != "":
		return &Finding{"until", "has no effect without mode: observe", "add mode: observe, or remove until"}
	case mode != Observe:
		return nil
	case until == "":
		return &Finding{"until", "is required with mode: observe", "write a time of at most " + latest}
	case until.Time().IsZero():
		return &Finding{"until", noTime, timeForms}
	case until.Time().After(now.Add(MaxTime)):
		return &Finding{"until", "is more than 30 days from now", "write a time of at most " + latest}
	}
	return nil
}

// Warn returns a warning if mode is `observe`, and otherwise nil. The warning contains the time from which decisions
// are enforced, or says that this time has passed. what names the thing to which the keys belong, for example "rule".
// [Check] must have returned nil for the values.
func Warn(what, mode string, until Until, now time.Time) *Finding {
	switch {
	case mode != Observe:
		return nil
	case now.Before(until.Time()):
		return &Finding{"mode", fmt.Sprintf("the %s is only observed until %s", what, Format(until.Time())), "remove mode and until to enforce it"}
	}
	return &Finding{"until", fmt.Sprintf("has passed, so the %s is enforced now", what), "remove mode and until"}
}
