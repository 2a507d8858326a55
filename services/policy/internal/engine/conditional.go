package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// maxOpen is the maximum number of unknown conditions for which [Set.mostPermissive] tries all combinations of results.
const maxOpen = 4

// evaluations contains the results of conditions for one call.
type evaluations struct {
	input condition.Input
	// results initially uses the memory of space, so that a few results need no further allocation.
	results []evaluated
	space   [4]evaluated
	// open is the number of unknown results. assumed has one bit for each unknown result. The bit is the result that is
	// assumed while a decision is made.
	open, assumed uint
	// failing has one bit for each unknown result. If the bit is set, the condition is assumed to fail, which means that
	// it can't be evaluated.
	failing uint
	// permissive is true if all rules whose conditions have unknown results apply.
	permissive bool
	// anyArguments is true if a decision must be valid for all arguments. In this case, the result of every condition that
	// reads arguments is unknown, even if its value does not depend on the arguments, because the condition fails if the
	// arguments contain look-alike keys.
	anyArguments bool
	// classes contains the tool classes for which conditions were evaluated. The field class is the index of the current
	// class.
	classes []condition.Class
	class   int
}

// An evaluated is the result of a condition for a principal.
type evaluated struct {
	condition *condition.Condition
	principal int
	// class is an index in evaluations.classes. It is 0 if the condition does not read the class of the tool.
	class  int
	result condition.Result
	err    error
	// open is true if the result depends on unknown values. This is the case if result is [condition.Unknown], or if the
	// condition can also fail. If open is true, bit is the position of this result in evaluations.assumed and
	// evaluations.failing.
	open bool
	bit  uint
}

// applies reports whether a rule that matches the call applies to the principal with index i. The rule applies if it
// matches the principal and if its condition has the required result.
func (c *Call) applies(r *rule, i int) bool {
	if !r.matchesPrincipal(c.Subject.at(i)) {
		return false
	}
	if r.when == nil {
		return true
	}
	result, _ := c.evaluate(r.when, i)
	return r.appliesAt(result)
}

// appliesAt reports whether a rule applies if its condition has the given result. If the condition can't be evaluated,
// appliesAt chooses the stricter alternative: the rule applies unless it allows calls.
func (r *rule) appliesAt(result condition.Result) bool {
	switch result {
	case condition.True:
		return !r.Otherwise
	case condition.False:
		return r.Otherwise
	case condition.Unknown: // evaluate returns Unknown only if evaluations.permissive is true
		return true
	case condition.Failed:
	}
	return r.Action != ActionAllow
}

// failure returns an error if the rule's condition can't be evaluated for the principal with index i, and otherwise
// nil.
func (c *Call) failure(r *rule, i int) error {
	if r.when == nil {
		return nil
	}
	_, err := c.evaluate(r.when, i)
	return err
}

// appliesToAny reports whether a rule applies to the caller or to a principal in the delegation chain.
func (c *Call) appliesToAny(r *rule) bool {
	for i := range c.Subject.size() {
		if c.applies(r, i) {
			return true
		}
	}
	return false
}

// limits reports whether the limits of a rule that matches the call apply to the principal with index i. If the rule's
// condition can't be evaluated, the limits apply even if the rule allows calls.
func (c *Call) limits(r *rule, i int) bool {
	return c.applies(r, i) || r.matchesPrincipal(c.Subject.at(i)) && c.failure(r, i) != nil
}

// evaluate returns the result of a condition for the principal with index i. Each condition is evaluated only once. If
// the result is unknown, evaluate returns the assumed result.
func (c *Call) evaluate(when *condition.Condition, i int) (condition.Result, error) {
	if when.Variables()&condition.VariableCaller == 0 {
		i = 0 // the result is the same for all principals
	}
	if c.evaluations == nil {
		c.evaluations = &evaluations{input: c.conditionInput()}
	}
	e := c.evaluations
	found := e.find(when, i)
	if found == nil {
		if e.results == nil {
			e.results = e.space[:0]
		}
		e.results = append(e.results, e.run(c, when, i))
		found = &e.results[len(e.results)-1]
	}
	if !found.open || e.permissive {
		return found.result, found.err
	}
	switch bit := uint(1) << found.bit; {
	case e.failing&bit != 0:
		return condition.Failed, errAssumedFailure
	case found.result != condition.Unknown:
		return found.result, nil
	case e.assumed&bit != 0:
		return condition.True, nil
	}
	return condition.False, nil
}

// find returns the result of a condition for the principal with index i and the current class. It returns nil if the
// condition has not been evaluated for this principal and class.
func (e *evaluations) find(when *condition.Condition, i int) *evaluated {
	for at := range e.results {
		if known := &e.results[at]; known.condition == when && known.principal == i && known.class == e.classFor(when) {
			return known
		}
	}
	return nil
}

// classFor returns the index of the tool's current class, or 0 if the condition does not read the class.
func (e *evaluations) classFor(when *condition.Condition) int {
	if e.class == 0 || when.Variables()&condition.VariableTool == 0 {
		return 0
	}
	return e.class
}

// setClass makes the class in a call the current class of the tool. A condition that reads the class and unknown values
// can have a different result for each class.
func (e *evaluations) setClass(c *Call) {
	class := classOf(&c.Facts)
	same := func(o condition.Class) bool {
		return o.Category == class.Category && o.Risk == class.Risk && slices.Equal(o.Tags, class.Tags)
	}
	if e.class = slices.IndexFunc(e.classes, same); e.class < 0 {
		e.class, e.classes = len(e.classes), append(e.classes, class)
	}
	e.input.Class = class
}

// run evaluates a condition for the principal with index i.
func (e *evaluations) run(c *Call, when *condition.Condition, i int) evaluated {
	variables := when.Variables()
	if variables&condition.VariableArgs&^e.input.Unknown != 0 {
		e.readArguments(c)
	}
	if variables&condition.VariableCaller != 0 {
		e.setCaller(c, i)
	}
	out := evaluated{condition: when, principal: i, class: e.classFor(when)}
	out.result, out.err = when.Evaluate(&e.input)
	mayFail := e.anyArguments && variables&condition.VariableArgs != 0 && out.err == nil
	if out.open = out.result == condition.Unknown || mayFail; out.open {
		out.bit = e.open
		e.open++
	}
	return out
}

// explain evaluates a rule's condition for the principal with index i, and describes the evaluation.
func (c *Call) explain(r *rule, i int) condition.Explanation {
	_, _ = c.evaluate(r.when, i) // this sets c.evaluations and parses the arguments
	c.evaluations.setCaller(c, i)
	return r.when.Explain(&c.evaluations.input)
}

// readArguments parses the arguments of the call, unless they have already been parsed.
func (e *evaluations) readArguments(c *Call) {
	if e.input.Args == (condition.Arguments{}) && e.input.ArgsError == nil {
		e.input.Args, e.input.ArgsError = condition.ParseArguments(c.Params)
	}
}

// setCaller sets the caller that conditions read to the principal with index i. It sets the chain to the principals
// that follow.
func (e *evaluations) setCaller(c *Call, i int) {
	e.input.Caller = c.Subject.at(i).conditionCaller()
	e.input.Chain = e.input.Chain[:0]
	for j := i + 1; j < c.Subject.size(); j++ {
		e.input.Chain = append(e.input.Chain, c.Subject.at(j).conditionCaller())
	}
}

func (p *Principal) conditionCaller() condition.Caller {
	return condition.Caller{
		Subject: p.Name, Agent: p.Agent, Tenant: p.Tenant, Groups: p.Groups, Issuer: p.Issuer, Client: p.Client, Scopes: p.Scopes,
	}
}

// conditionInput returns the input for conditions, without the arguments and the caller.
func (c *Call) conditionInput() condition.Input {
	in := condition.Input{
		Server: c.Server, Method: c.method(), Now: c.Now, Properties: c.Facts.Arguments,
		Class: classOf(&c.Facts),
	}
	if c.OfTool() {
		in.Tool = c.Tool
	} else if c.nameKind() == namesResource {
		in.URI = c.Tool
	}
	if c.listed {
		in.Unknown = condition.VariableArgs | condition.VariableNow
	}
	if c.Facts.anyTool {
		in.Unknown |= condition.VariableTool
	}
	return in
}

func classOf(f *Facts) condition.Class {
	return condition.Class{Category: f.Category, Risk: f.Risk, Tags: f.Tags}
}

// mostPermissive returns the most permissive verdict on a listed call. A listed call represents all calls with the same
// method and the same tool, prompt or resource. If the result of a condition is unknown, mostPermissive assumes the
// result that is best for the caller. It treats different conditions as independent, so it can be that all calls are
// denied although the verdict permits them. If more than [maxOpen] conditions have unknown results, mostPermissive
// assumes that a rule with such a condition applies unless it refuses calls.
func (s *Set) mostPermissive(rules []*rule, call *Call) verdict {
	for _, r := range rules { // find all unknown results before any result is assumed
		for i := range call.Subject.size() {
			call.applies(r, i)
		}
	}
	open := uint(0)
	if call.evaluations != nil {
		open = call.evaluations.open
	}
	if open > maxOpen {
		rules = slices.DeleteFunc(slices.Clone(rules), call.refusesOpen)
		call.evaluations.permissive = true
		open = 0
	}
	best := s.combine(s.withByRisk(rules, call), call)
	for assumed := uint(1); assumed < 1<<open && best.decision(call).Effect != Allow; assumed++ {
		call.evaluations.assumed = assumed
		if v := s.combine(s.withByRisk(rules, call), call); v.isMorePermissive(&best, call) {
			best = v
		}
	}
	return best
}

// refusesOpen reports whether a rule refuses calls and has a condition with an unknown result.
func (c *Call) refusesOpen(r *rule) bool {
	open := func(known evaluated) bool { return known.condition == r.when && known.result == condition.Unknown }
	return r.Action >= ActionDeny && slices.ContainsFunc(c.evaluations.results, open)
}

// isMorePermissive reports whether the verdict v is more permissive than o. A refusal with a reason is more permissive
// than a refusal without a reason, because the tool still appears in lists.
func (v *verdict) isMorePermissive(o *verdict, call *Call) bool {
	rank := func(v *verdict) int {
		switch d := v.decision(call); {
		case d.Effect == Allow:
			return 3
		case d.Effect == RequireApproval:
			return 2
		case v.givesReason(&d):
			return 1
		default:
			return 0
		}
	}
	return rank(v) > rank(o)
}
