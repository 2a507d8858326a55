package document

import (
	"fmt"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// forward converts the keys timeout and forward.
func (r *reader) forward(at string, t *terms, rule *engine.Rule) {
	if t.Timeout != nil {
		rule.Timeout = time.Duration(*t.Timeout)
		if rule.Timeout == 0 { // the engine treats 0 as no timeout
			r.add(at+".timeout", "is not between 1ms and 1h", "")
		}
	}
	if t.Forward == nil {
		return
	}
	if rule.Strict = true; *t.Forward != "strict" {
		r.add(at+".forward", fmt.Sprintf("unknown value %q", *t.Forward), "write strict, or remove it")
	}
}
