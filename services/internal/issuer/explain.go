package issuer

import (
	"errors"
	"fmt"
	"time"
)

// Step is a step of the verification of a token.
type Step struct {
	// Name is a word such as "audience".
	Name string
	// Text says what the step found. It may contain values of claims.
	Text string
	// Refused is true for the step that refuses the token, which is the last one.
	Refused bool
}

// Explain verifies a token and returns the steps of the verification. The identity is nil if the token is refused.
func (s *Set) Explain(token string, now time.Time) ([]Step, *Identity) {
	t := new(trace)
	identity, refusal := s.verify(token, now, t)
	if refusal != nil {
		t.steps = append(t.steps, Step{Name: string(refusal.Reason), Text: refusal.Error(), Refused: true})
	}
	return t.steps, identity
}

// trace collects the steps of a verification. A nil trace collects nothing.
type trace struct{ steps []Step }

func (t *trace) addf(name, format string, args ...any) {
	if t != nil {
		t.steps = append(t.steps, Step{Name: name, Text: fmt.Sprintf(format, args...)})
	}
}

// RefusalOf returns the [*Refusal] that err wraps, or nil if there is none.
func RefusalOf(err error) *Refusal {
	refusal, _ := errors.AsType[*Refusal](err)
	return refusal
}
