package engine

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// errAssumedFailure is the error of a condition that is assumed to fail.
var errAssumedFailure = errors.New("its arguments are not known")

// errAssumedArguments is the error from checking the arguments if a decision assumes that they do not satisfy the
// tool's input schema.
var errAssumedArguments = errors.New("the arguments do not satisfy the tool's input schema, or the schema is not known or can't be used")

// maxCases limits the number of cases in an incomplete [ToolAccess].
const maxCases = 20

// A ToolAccess contains the decisions that are possible for a caller's calls to a tool.
type ToolAccess struct {
	// Cases contains the possible decisions, most permissive first. It is never empty. For every call, [Set.Decide]
	// returns the effect of one of the cases. If there is only one case, all calls get the same effect for the same
	// reason, whatever their arguments and the time are. A case may be impossible, because different conditions are
	// treated as independent.
	Cases []AccessCase
	// Visible is true if the tool is listed for the caller. It is the result of [Set.Visible].
	Visible bool
	// Incomplete is true if decisions may be missing, because there are too many conditions on the arguments or the time
	// to try all combinations of their results. Then there are at most [maxCases] cases, and limits may be missing in a
	// case. But if the first case is a refusal, every call is refused.
	Incomplete bool
}

// An AccessCase is a possible decision on calls to a tool.
type AccessCase struct {
	// Decision is the decision. It contains the limits for all calls in this case.
	Decision Decision
	// Condition is the condition of the rule that made the decision, if its result depends on the call. Otherwise it is
	// empty. It is also empty if a default made the decision.
	Condition string
	// Holds is true if the decision requires that the condition is true, and false if it requires that the condition is
	// false.
	Holds bool
}

// Depends reports whether decisions on different calls to the tool can have different effects.
func (a *ToolAccess) Depends() bool {
	first := a.Cases[0].Decision.Effect
	differs := func(c AccessCase) bool { return c.Decision.Effect != first }
	return a.Incomplete || slices.ContainsFunc(a.Cases, differs)
}

// ToolAccess returns the possible decisions on calls to a tool. It makes a decision for each combination of results of
// the conditions that depend on the arguments or the time. Each result can be true, false or failed. If there are more
// than [maxOpen] such conditions, it tries only the combinations that [evaluations.combine] chooses.
func (s *Set) ToolAccess(subject Subject, server, tool string, facts Facts) ToolAccess {
	call := Call{Server: server, Tool: tool, Subject: subject, Facts: facts, listed: true}
	out := ToolAccess{Visible: s.Visible(subject, server, tool, facts).Visible}
	if code := refusal(&call); code != "" {
		out.Cases = []AccessCase{{Decision: Decision{Code: code}}}
		return out
	}
	call.evaluations = &evaluations{input: call.conditionInput()}
	complete := call.evaluations.combine(maxOpen, func() {
		for _, invalid := range []error{nil, errAssumedArguments} {
			call.argumentsChecked, call.CheckArguments = false, func(string) error { return invalid }
			d, v := s.decide(&call)
			out.addOpened(s, d, v, &call)
			if !call.argumentsChecked {
				break
			}
		}
	})
	if !complete {
		s.addPermissive(&out, call)
	}
	slices.SortStableFunc(out.Cases, func(a, b AccessCase) int { return cmp.Compare(rankOf(&b.Decision), rankOf(&a.Decision)) })
	if !complete {
		out.Cases = out.Cases[:min(len(out.Cases), maxCases)]
	}
	return out
}

// addPermissive adds the most permissive decision on calls to a tool. This is necessary if not all combinations were
// tried. If even this decision is a refusal, all calls are refused, so this decision becomes the only case.
func (s *Set) addPermissive(out *ToolAccess, call Call) {
	call.evaluations = nil
	var space [16]*rule
	v := s.mostPermissive(s.find(space[:0], &call), &call)
	d := v.decision(&call)
	if code, why := call.Facts.Status.refusal(call.Server); code != "" && d.Effect != Deny {
		d = Decision{Code: code, Message: why}
	}
	if s.opens(&call) {
		d = d.open(&call)
	}
	if out.Incomplete = d.Effect != Deny; !out.Incomplete {
		out.Cases = nil
	}
	out.addOpened(s, d, v, &call)
}

// addOpened adds a decision to the cases. If the server is in observe mode, it adds the result of [Decision.open]
// instead.
func (a *ToolAccess) addOpened(s *Set, d Decision, v verdict, call *Call) {
	if s.opens(call) {
		if refused := d.Effect != Allow; refused {
			v = verdict{} // the rule that refused the call does not decide
		}
		d = d.open(call)
	}
	a.add(d, v, call)
}

// add adds a decision to the cases, or merges it into the existing case with the same rule, effect and code.
func (a *ToolAccess) add(d Decision, v verdict, call *Call) {
	at := slices.IndexFunc(a.Cases, func(c AccessCase) bool {
		return c.Decision.Effect == d.Effect && c.Decision.Code == d.Code && c.Decision.Rule == d.Rule
	})
	if at < 0 {
		c := AccessCase{Decision: d}
		if r := cmp.Or(v.scoped, v.rule); r != nil && d.Code != TypeError && call.isOpen(r) {
			c.Condition, c.Holds = r.condition(), !r.Otherwise
		}
		a.Cases = append(a.Cases, c)
		return
	}
	known := &a.Cases[at].Decision
	for _, l := range d.Limits {
		has := func(o Limit) bool { return o.Bucket == l.Bucket }
		if len(known.Limits) < MaxLimits && !slices.ContainsFunc(known.Limits, has) {
			known.Limits = append(known.Limits, l)
		}
	}
	if known.Approval != nil && known.Approval.Grant == (Grant{}) && d.Approval != nil {
		known.Approval = d.Approval
	}
}

// isOpen reports whether the result of a rule's condition is unknown.
func (c *Call) isOpen(r *rule) bool {
	open := func(known evaluated) bool { return known.condition == r.when && known.result == condition.Unknown }
	return r.when != nil && slices.ContainsFunc(c.evaluations.results, open)
}

// rankOf returns a number that is greater for more permissive decisions.
func rankOf(d *Decision) int {
	switch d.Effect {
	case Allow:
		return 2
	case RequireApproval:
		return 1
	case Deny:
	}
	return 0
}
