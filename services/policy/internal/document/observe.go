package document

import (
	"time"

	"github.com/sluice-mesh/sluice/services/internal/observe"
)

// observe checks the keys mode and until at the given path. It returns the time until which the rule or document is in
// observe mode, in which its decisions are only recorded and not enforced. The result is zero if the rule or document
// is enforced. The parameter kind is "rule" or "document".
func (r *reader) observe(at, kind, mode string, until observe.Until) time.Time {
	key := func(name string) string {
		if at == "" {
			return name
		}
		return at + "." + name
	}
	if fault := observe.Check(mode, until, r.now); fault != nil {
		r.add(key(fault.Key), fault.Message, fault.Suggestion)
		return time.Time{}
	}
	if w := observe.Warn(kind, mode, until, r.now); w != nil {
		r.warnings = append(r.warnings, r.source.Problem(key(w.Key), w.Message, w.Suggestion))
	}
	if mode != observe.Observe {
		return time.Time{}
	}
	return until.Time()
}
