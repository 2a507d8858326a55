package engine

import (
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

const (
	// maxReplayed is the maximum number of conditions with unknown results for which [Set.Replay] tries all results.
	maxReplayed = 4
	// maxReplayRules is the maximum number of rules that Replay returns.
	maxReplayRules = 20
)

// Unknown is a set of values that are not known of a recorded call.
type Unknown uint8

// The values that may be unknown.
const (
	// UnknownArguments are the arguments of the call.
	UnknownArguments Unknown = 1 << iota
	// UnknownGroups are the groups of the caller, or of a principal in its chain.
	UnknownGroups
	// UnknownClass is everything that Facts say about the tool, except for the status.
	UnknownClass
	// UnknownName are the name or URI of a prompt or resource, and the kind of a completion.
	UnknownName
)

// A Replay is the result of [Set.Replay].
type Replay struct {
	// Decision is a decision that the call can get. If Needs is zero, every decision that the call can get has the
	// effect of Decision, and has its effect if nothing were observed.
	Decision Decision
	// Needs are the unknown values on which the effect depends.
	Needs Unknown
	// Rules are rules that read these values, at most [maxReplayRules]. Rules is empty if Needs is zero.
	Rules []RuleRef
	// MostPermissive is the most permissive effect that the call can get, also if nothing were observed.
	MostPermissive Effect
}

// Enforced returns the effect that a decision would have if nothing were observed.
func (d *Decision) Enforced() Effect {
	if d.Observed != nil {
		return d.Observed.Effect
	}
	return d.Effect
}

// Replay decides a recorded call. unknown are the values that are not known, whose values in call are ignored. The time
// is known unless it is zero.
//
// If the arguments are unknown, the decision is known if it is the same for all arguments: each condition that reads arguments may be true, false or
// failed, unless the other values determine its result, and may fail in any case. Different conditions are taken to be
// independent of each other, and if too many conditions are involved, the decision is not known. Therefore Replay may
// report that a decision is not known although all arguments give the same effect, but not the reverse. Rules that read
// other unknown values make the decision unknown if they may match the call.
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

// replay decides a call whose values are known except for the arguments, unless those are known, too. Whether arguments
// satisfy the tool's schema is not known in either case.
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

// allowUpTo notes that the call can get an effect.
func (r *Replay) allowUpTo(e Effect) {
	if rankOf(&Decision{Effect: e}) > rankOf(&Decision{Effect: r.MostPermissive}) {
		r.MostPermissive = e
	}
}

// addVerdict adds the rule that decided if its result depends on the arguments.
func (r *Replay) addVerdict(call *Call, v *verdict) {
	for _, decided := range []*rule{v.strict, v.failedRule, v.rule} {
		if decided != nil && (decided == v.strict || call.depends(decided)) {
			r.addRule(decided.ref)
		}
	}
}

// addOpenRules adds all rules that match a call and whose results depend on the arguments.
func (r *Replay) addOpenRules(s *Set, call *Call) {
	for _, one := range s.find(nil, call) {
		if call.depends(one) {
			r.addRule(one.ref)
		}
	}
}

// depends reports whether the result of a rule's condition depends on unknown values.
func (c *Call) depends(r *rule) bool {
	open := func(known evaluated) bool { return known.condition == r.when && known.open }
	return r.when != nil && slices.ContainsFunc(c.evaluations.results, open)
}

func (r *Replay) addRule(ref RuleRef) {
	if !ref.IsZero() && len(r.Rules) < maxReplayRules && !slices.Contains(r.Rules, ref) {
		r.Rules = append(r.Rules, ref)
	}
}

// addReaders adds the rules that may match a call and that read unknown values.
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
	rules := s.withoutObservation().find(nil, &call) // contains the rules of s
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

// reads returns which of the values that may be unknown the rule reads, except for arguments.
func (r *rule) reads() (out Unknown) {
	if len(r.groups) > 0 {
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
	// A condition reads groups as caller.groups, or by the chain, whose fields may have computed names.
	if strings.Contains(r.When, "groups") || strings.Contains(r.When, "chain") {
		out |= UnknownGroups
	}
	if strings.Contains(r.When, "uri") { // call.uri
		out |= UnknownName
	}
	if r.when.Variables()&condition.VariableTool != 0 {
		out |= UnknownClass
	}
	return out
}

// mayMatch reports whether the rule matches a principal of the subject for some groups.
func (r *rule) mayMatch(subject *Subject) bool {
	for i := range subject.size() {
		p := subject.at(i)
		if r.matchesAnyone || r.agents.match(p.Agent) && r.names.match(p.Name) && r.tenants.match(p.Tenant) {
			return true
		}
	}
	return false
}

// ReadsTime reports whether a condition of the set reads the time.
func (s *Set) ReadsTime() bool { return s.reads(condition.VariableNow) }

// ReadsArguments reports whether a condition of the set reads arguments of calls.
func (s *Set) ReadsArguments() bool { return s.reads(condition.VariableArgs) }

func (s *Set) reads(variable condition.Variables) bool {
	for _, c := range s.conditions {
		if c.Variables()&variable != 0 {
			return true
		}
	}
	return false
}
