// Package observe checks the keys `mode` and `until` of policy documents and of the configuration. With `mode: observe`,
// policy does not refuse calls, but records the decisions that would apply.
package observe

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// MaxTime is the maximum time from the time at which a file is loaded to `until`.
const MaxTime = 30 * 24 * time.Hour

// The values of `mode`. An empty mode means enforce.
const (
	Enforce = "enforce"
	Observe = "observe"
)

// Until is the value of `until`: a date, which means midnight UTC at its beginning, or a time in the form of RFC 3339. It
// is empty if the key is absent.
type Until string

// Time returns the time. It is zero if the key is absent or has another form.
func (u Until) Time() time.Time {
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, string(u)); err == nil {
			return t.UTC()
		}
	}
	return time.Time{}
}

// UnmarshalYAML implements yaml.Unmarshaler. A date needs no quotes, although YAML has a type of its own for it.
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

// Format returns a time as a date if it is midnight UTC, and otherwise in the form of RFC 3339.
func Format(t time.Time) string {
	t = t.UTC()
	if t.Equal(t.Truncate(24 * time.Hour)) {
		return t.Format(time.DateOnly)
	}
	return t.Format(time.RFC3339)
}

// A Finding is a problem or a warning about one of the keys.
type Finding struct {
	// Key is `mode` or `until`.
	Key string
	// Message describes the problem. Suggestion describes how to solve it.
	Message, Suggestion string
}

// Check returns the problem with the values of the keys in a file that is loaded at the time now, or nil.
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

// Warn returns a warning if the keys make something observed, or did so until a time that has passed, and otherwise
// nil. what is the kind of the thing, for example "rule". [Check] must have returned nil.
func Warn(what, mode string, until Until, now time.Time) *Finding {
	switch {
	case mode != Observe:
		return nil
	case now.Before(until.Time()):
		return &Finding{"mode", fmt.Sprintf("the %s is only observed until %s", what, Format(until.Time())), "remove mode and until to enforce it"}
	}
	return &Finding{"until", fmt.Sprintf("has passed, so the %s is enforced now", what), "remove mode and until"}
}
