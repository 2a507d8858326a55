package engine

import (
	"cmp"
	"errors"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// errAssumedFailure is the error of a condition that a decision assumes to fail.
var errAssumedFailure = errors.New("its arguments are not known")

// errAssumedArguments is the error of arguments that a decision assumes to violate the tool's input schema.
var errAssumedArguments = errors.New("the arguments do not satisfy the tool's input schema, or the schema is not known or can't be used")

// maxCases is the maximum number of cases of an incomplete access.
const maxCases = 20

// A ToolAccess describes the decisions that the calls of a tool by one subject can get.
type ToolAccess struct {
	// Cases are the possible decisions, the most permissive first. It has one entry if all calls get the same effect for
	// the same reason, regardless of their arguments and the time. It is never empty. Decide returns for every call an
	// effect of one of the cases. A case may be impossible, because different conditions are taken to be independent of
	// each other.
	Cases []AccessCase
	// Visible reports whether the tool is listed to the subject; see [Set.Visible].
	Visible bool
	// Incomplete reports whether Cases may lack decisions, because more conditions depend on the arguments or the time
	// than are combined. Cases then has at most [maxCases] entries, and an entry may have too few limits. If the first
	// case is a refusal, every call is refused.
	Incomplete bool
}

// An AccessCase is a decision that some calls of a tool can get.
type AccessCase struct {
	// Decision is the decision. Its limits are those of all calls of the case.
	Decision Decision
	// Condition is the condition of the rule that decided, if its result depends on the call. It is empty if the rule has
	// no such condition, or if a default decided.
	Condition string
	// Holds reports whether the rule decides if the condition is true, and not if it is false.
	Holds bool
}

// Depends reports whether calls of the tool can get different effects.
func (a *ToolAccess) Depends() bool {
	first := a.Cases[0].Decision.Effect
	differs := func(c AccessCase) bool { return c.Decision.Effect != first }
	return a.Incomplete || slices.ContainsFunc(a.Cases, differs)
}

// ToolAccess returns the decisions that calls of a tool can get. It decides the call once for each combination of
// results of the conditions that depend on the arguments or the time: true, false, and a failed evaluation. For more
// than [maxOpen] such conditions it decides the call for some of the combinations; see [evaluations.combine].
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

// addPermissive adds the most permissive decision about the calls of a tool about which too many conditions are unknown.
// If it is a refusal, all calls are refused, and it is the only case.
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

// addOpened adds a decision to the cases, or, if the server is observed, the decision that is made instead.
func (a *ToolAccess) addOpened(s *Set, d Decision, v verdict, call *Call) {
	if s.opens(call) {
		if refused := d.Effect != Allow; refused {
			v = verdict{} // the rule that refused decides nothing
		}
		d = d.open(call)
	}
	a.add(d, v, call)
}

// add adds a decision to the cases, or merges it with the case that has the same rule, effect and code.
func (a *ToolAccess) add(d Decision, v verdict, call *Call) {
	at := slices.IndexFunc(a.Cases, func(c AccessCase) bool {
		return c.Decision.Effect == d.Effect && c.Decision.Code == d.Code && c.Decision.Rule == d.Rule
	})
	if at < 0 {
		c := AccessCase{Decision: d}
		if r := v.rule; r != nil && d.Code != TypeError && call.isOpen(r) {
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

// rankOf orders decisions: an allowed call is the most permissive.
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
