package engine

import (
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

const (
	// maxReplayed is the maximum number of unknown conditions for which [Set.Replay] tries all combinations of results.
	maxReplayed = 4
	// maxReplayRules limits the number of rules in a Replay.
	maxReplayRules = 20
)

// Unknown is a set of kinds of unknown values in a recorded call.
type Unknown uint8

// These are the kinds of values that may be unknown.
const (
	// UnknownArguments are the arguments of the call.
	UnknownArguments Unknown = 1 << iota
	// UnknownGroups are the groups and the scopes of the caller and the principals in its delegation chain.
	UnknownGroups
	// UnknownClass means everything in Facts except for Status.
	UnknownClass
	// UnknownName means the name of a prompt or the URI of a resource, and the field Ref of a completion request.
	UnknownName
)

// A Replay is the result of [Set.Replay].
type Replay struct {
	// Decision is one of the decisions that are possible for the call. If Needs is zero, all possible decisions have the
	// same effect, and would also have the same effect without observe mode.
	Decision Decision
	// Needs contains the kinds of unknown values on which the effect depends.
	Needs Unknown
	// Rules contains at most [maxReplayRules] rules that read these values. It is empty if Needs is zero.
	Rules []RuleRef
	// MostPermissive is the most permissive effect that is possible for the call, with or without observe mode.
	MostPermissive Effect
}

// Enforced returns the effect that the decision would have without observe mode.
func (d *Decision) Enforced() Effect {
	if d.Observed != nil {
		return d.Observed.Effect
	}
	return d.Effect
}

// Replay makes a decision on a recorded call in which some values are unknown. It ignores these values in the call. The
// time is treated as known unless it is zero.
//
// If the arguments are unknown, Replay considers all possible results of the conditions that read them. It returns a
// decision without Needs only if the effect is always the same. The result of a condition that reads arguments can be
// true, false or failed. If the known values determine the result, Replay considers only this result and failed.
//
// Replay may report that the effect depends on the arguments although it does not. The reason is that Replay treats
// different conditions as independent, and that it tries only some results if there are too many conditions. The
// reverse never happens.
//
// If values other than arguments are unknown, the effect counts as dependent on them if a rule that may match the call
// reads them.
func (s *Set) Replay(call Call, unknown Unknown) Replay {
	if refusal(&call) != "" {
		return Replay{Decision: s.Decide(call)}
	}
	if unknown&UnknownClass != 0 {
		call.Facts = Facts{Status: call.Facts.Status}
	}
	if call.nameKind() == namesNone {
		unknown &^= UnknownName
	}
	out := s.replay(call, unknown&UnknownArguments != 0)
	out.addReaders(s, call, unknown&^UnknownArguments)
	if out.Needs&^UnknownArguments != 0 {
		out.MostPermissive = Allow
	}
	return out
}

// replay makes a decision on a call in which all values are known, except for the arguments if anyArguments is true. In
// both cases, it is unknown whether the arguments satisfy the tool's schema.
func (s *Set) replay(of Call, anyArguments bool) Replay {
	var out Replay
	call := &of
	call.evaluations = &evaluations{input: call.conditionInput(), anyArguments: anyArguments}
	if anyArguments {
		call.evaluations.input.Unknown |= condition.VariableArgs
	}
	decided, differs := false, false
	complete := call.evaluations.combine(maxReplayed, func() {
		for _, invalid := range []error{nil, errAssumedArguments} {
			call.argumentsChecked, call.CheckArguments = false, func(string) error { return invalid }
			d, v := s.decideObserved(call)
			out.addVerdict(call, &v)
			if s.enforced != nil {
				_, would := s.enforced.decide(call)
				out.addVerdict(call, &would)
			}
			out.allowUpTo(d.Effect)
			out.allowUpTo(d.Enforced())
			if !decided {
				out.Decision, decided = d, true
			}
			differs = differs || !sameEffect(&out.Decision, &d)
			if !call.argumentsChecked {
				break
			}
		}
	})
	switch {
	case differs:
		out.Needs = UnknownArguments
	case complete:
		out.Rules = nil
		return out
	default:
		out.Needs, out.MostPermissive = UnknownArguments, Allow
	}
	if len(out.Rules) == 0 {
		out.addOpenRules(s.withoutObservation(), call)
	}
	return out
}

func sameEffect(a, b *Decision) bool { return a.Effect == b.Effect && a.Enforced() == b.Enforced() }

func (r *Replay) allowUpTo(e Effect) {
	if rankOf(&Decision{Effect: e}) > rankOf(&Decision{Effect: r.MostPermissive}) {
		r.MostPermissive = e
	}
}

// addVerdict adds the rules from which a verdict results, if their results depend on the arguments.
func (r *Replay) addVerdict(call *Call, v *verdict) {
	for _, decided := range []*rule{v.strict, v.scoped, v.failedRule, v.rule} {
		if decided != nil && (decided == v.strict || call.depends(decided)) {
			r.addRule(decided.ref)
		}
	}
}

// addOpenRules adds the rules that match a call if their results depend on the arguments.
func (r *Replay) addOpenRules(s *Set, call *Call) {
	for _, one := range s.find(nil, call) {
		if call.depends(one) {
			r.addRule(one.ref)
		}
	}
}

// depends reports whether the result of a rule's condition depends on the unknown arguments.
func (c *Call) depends(r *rule) bool {
	open := func(known evaluated) bool { return known.condition == r.when && known.open }
	return r.when != nil && slices.ContainsFunc(c.evaluations.results, open)
}

func (r *Replay) addRule(ref RuleRef) {
	if !ref.IsZero() && len(r.Rules) < maxReplayRules && !slices.Contains(r.Rules, ref) {
		r.Rules = append(r.Rules, ref)
	}
}

// addReaders adds the rules that may match a call and that read values of the given unknown kinds.
func (r *Replay) addReaders(s *Set, call Call, unknown Unknown) {
	if unknown == 0 {
		return
	}
	call.Facts.anyClass, call.anyName = unknown&UnknownClass != 0, unknown&UnknownName != 0
	for _, set := range []*Set{s, s.withoutObservation()} {
		if f := set.fallbacks.find(call.Server); call.Facts.anyClass && f.table != nil && call.OfTool() {
			r.Needs |= UnknownClass
			r.addRule(RuleRef{Document: f.document, Rule: byRiskName})
		}
	}
	rules := s.withoutObservation().find(nil, &call) // this includes the rules in s
	limits := 0
	for _, one := range rules {
		limits += 2 * len(one.limits) * call.Subject.size()
	}
	for _, one := range rules {
		decides := one.Action != ActionNone || one.Strict || limits > MaxLimits
		if reads := one.reads() & unknown; reads != 0 && decides && one.mayMatch(&call.Subject) {
			r.Needs |= reads
			r.addRule(one.ref)
		}
	}
}

// reads returns the kinds of values that the rule reads, except for the arguments.
func (r *rule) reads() (out Unknown) {
	if len(r.groups) > 0 || len(r.NeedsScope) > 0 {
		out |= UnknownGroups
	}
	if r.Match.hasNames() {
		out |= UnknownName
	}
	if r.hasToolProperties {
		out |= UnknownClass
	}
	if r.when == nil {
		return out
	}
	// A condition can read groups as caller.groups, or as a field of a principal in the chain. The name of this field can
	// be the result of an expression, so a search for the name is not enough. The same applies to scopes.
	if strings.Contains(r.When, "groups") || strings.Contains(r.When, "scopes") || strings.Contains(r.When, "chain") {
		out |= UnknownGroups
	}
	if strings.Contains(r.When, "uri") { // as in call.uri
		out |= UnknownName
	}
	if r.when.Variables()&condition.VariableTool != 0 {
		out |= UnknownClass
	}
	return out
}

// mayMatch reports whether the rule could match the caller or a principal in its delegation chain, whatever their
// groups are.
func (r *rule) mayMatch(subject *Subject) bool {
	for i := range subject.size() {
		p := subject.at(i)
		if r.matchesAnyone || r.agents.match(p.Agent) && r.names.match(p.Name) && r.tenants.match(p.Tenant) {
			return true
		}
	}
	return false
}

// ReadsTime reports whether a condition in the set reads the time.
func (s *Set) ReadsTime() bool { return s.reads(condition.VariableNow) }

// ReadsArguments reports whether a condition in the set reads the arguments of calls.
func (s *Set) ReadsArguments() bool { return s.reads(condition.VariableArgs) }

func (s *Set) reads(variable condition.Variables) bool {
	for _, c := range s.conditions {
		if c.Variables()&variable != 0 {
			return true
		}
	}
	return false
}
