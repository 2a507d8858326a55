package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// Decide makes the decision on a call. It evaluates only those rules that have a pattern whose literal text before the
// first wildcard is a prefix of the tool's or method's name. The running time grows with the number of these rules.
func (s *Set) Decide(call Call) Decision {
	d, _ := s.decideObserved(&call)
	return d
}

// EvaluatesConditions reports whether the decision on a call depends on the call's arguments or the time. This is so if
// a condition reads them, or if the arguments are checked against the tool's schema. Such a decision can take thousands
// of times longer than other decisions.
func (s *Set) EvaluatesConditions(call Call) bool {
	s = s.withoutObservation() // rules in observe mode are evaluated too
	if !s.conditional || refusal(&call) != "" {
		return false
	}
	var space [16]*rule
	return slices.ContainsFunc(s.find(space[:0], &call), func(r *rule) bool { return r.readsCall() })
}

// readsCall reports whether the rule checks a call's arguments against the tool's schema, or has a condition that reads
// the arguments or the time. A rule whose grant has a condition always counts.
func (r *rule) readsCall() bool {
	const varying = condition.VariableArgs | condition.VariableNow
	return r.Strict || r.where != nil || r.when != nil && r.when.Variables()&varying != 0
}

func (s *Set) decide(call *Call) (Decision, verdict) {
	if code := refusal(call); code != "" {
		return Decision{Code: code}, verdict{}
	}
	if d, stopped := s.decideStop(call); stopped {
		return d, verdict{}
	}
	var space [16]*rule
	rules := s.withByRisk(s.find(space[:0], call), call)
	v := s.combine(rules, call)
	d := v.decision(call)
	if d.Code == TypeError {
		d.Message = v.failureText(call)
	}
	if code, why := call.Facts.Status.refusal(call.Server); code != "" && d.Effect != Deny {
		return Decision{Code: code, Message: why, ChainIndex: v.chain}, v
	}
	if d.Effect == Deny {
		if d.Code == DeniedByDefault && v.chain == 0 && call.needsModelRule() {
			d.Message = modelRefusal
		}
		return d, v
	}
	if refused, r := call.missingScope(rules); r != nil {
		v.scoped, v.chain = r, refused.ChainIndex
		return refused, v
	}
	if r, chain := call.strictRule(rules); r != nil {
		if err := call.checkArguments(); err != nil {
			v.strict = r
			return refusedArguments(r, chain, err), v
		}
	}
	d.Limits = s.limits(rules, call)
	if len(d.Limits) > MaxLimits {
		d.Effect, d.Code, d.Limits, d.Approval, d.Idempotent = Deny, DeniedByRule, nil, nil, false
		d.Message = "more limits apply to the call than can be reserved at once"
		return d, v
	}
	d.Timeout, d.TimeoutRule = call.timeout(rules)
	d.Record = call.recordedBy(rules)
	if d.Redactions = call.redactions(rules); len(d.Redactions) > MaxRedactions {
		d = Decision{Code: DeniedByRule, Rule: d.Rule, RuleDigest: d.RuleDigest, ChainIndex: d.ChainIndex}
		d.Message = "more redactions apply to the call than can be made at once"
	}
	return d, v
}

// refusal returns the code if a call is refused before rules are evaluated. Otherwise it returns "".
func refusal(call *Call) Code {
	switch {
	case !call.Subject.valid():
		return Unauthenticated
	case !validServer(call.Server):
		return ToolUnknown
	case call.OfTool() && !validTool(call.Tool):
		return ToolNameInvalid
	default:
		return ""
	}
}

// A verdict is the result of applying all rules to a call.
type verdict struct {
	// action is the strictest action.
	action Action
	// rule is the rule with this action. It is nil if the action comes from a default.
	rule *rule
	// chain is the index of the principal that determines the verdict, as in [Decision.ChainIndex].
	chain int
	// terms is set if action is ActionRequireApproval. An approval under these terms satisfies all rules that require
	// approval.
	terms *ApprovalTerms
	// idempotent is true if rules with an action apply to each principal, and if Idempotent is set in all these rules.
	idempotent bool
	// failed is the error if the verdict results from a condition that can't be evaluated. failedRule is the rule with
	// this condition.
	failed     error
	failedRule *rule
	// hint is the rule whose reason is shown if a default refuses the call. It is nil if there is no such rule.
	hint *rule
	// inexact is a rule with ActionRequireApproval that matches the call only because some server could interpret the
	// call's URI as a URI that the rule names. It is set only if no rule admits the call.
	inexact *rule
	// conflict contains two rules whose lists of approvers or of acr values have no element in common. conflictText
	// describes the two lists. If there is no conflict, both rules are nil.
	conflict     [2]*rule
	conflictText string
	// strict is a rule with Strict that refuses the call. It is nil if there is no such rule.
	strict *rule
	// scoped is a rule that requires a scope that the principal does not have. It is nil if no scope is missing.
	scoped *rule
}

// combine returns the verdict of the rules that match a call. If no rule has an action, tools/call gets the default,
// notifications that the protocol defines are allowed, and all other methods are denied.
func (s *Set) combine(rules []*rule, call *Call) verdict {
	var best verdict
	for i := range call.Subject.size() {
		own := call.strictest(rules, i)
		if i == 0 && call.needsModelRule() && own.permits() && !hasModelRule(rules, call) {
			own = verdict{action: ActionDeny}
		}
		if own.action == ActionRequireApproval && !isAdmitted(rules, call, i) {
			own = verdict{inexact: own.rule}
		}
		own.chain = i
		if own.action == ActionNone {
			s.applyDefault(&own, rules, call)
		}
		if i == 0 || own.beats(&best) {
			best = own
		}
	}
	if best.action == ActionRequireApproval {
		s.poolTerms(&best, rules, call)
	}
	best.idempotent = best.rule != nil && best.rule.Idempotent && idempotent(rules, call)
	return best
}

// applyDefault sets the action in a verdict for a principal to whom no rule with an action applies.
func (s *Set) applyDefault(v *verdict, rules []*rule, call *Call) {
	v.action = ActionDeny
	if r := call.failedAllow(rules, v.chain); r != nil {
		v.failed, v.failedRule = call.failure(r, v.chain), r
		return
	}
	v.hint = call.hint(rules, v.chain)
	switch {
	case v.chain == 0 && call.needsModelRule():
	case call.OfTool():
		v.action = s.fallbacks.find(call.Server).action()
	case slices.Contains(mcpmethod.Notifications(), call.Method):
		v.action = ActionAllow
	}
}

// failedAllow returns a rule that could allow the call for the principal with index i, but whose condition can't be
// evaluated. It returns nil if there is no such rule.
func (c *Call) failedAllow(rules []*rule, i int) *rule {
	at := slices.IndexFunc(rules, func(r *rule) bool {
		return r.Action == ActionAllow && r.matchesPrincipal(c.Subject.at(i)) && c.failure(r, i) != nil
	})
	if at < 0 {
		return nil
	}
	return rules[at]
}

// hint returns a rule without an action that has a reason and applies to the principal with index i. It returns nil if
// there is no such rule.
func (c *Call) hint(rules []*rule, i int) *rule {
	at := slices.IndexFunc(rules, func(r *rule) bool {
		return r.Action == ActionNone && r.Reason != "" && c.applies(r, i) && c.failure(r, i) == nil
	})
	if at < 0 {
		return nil
	}
	return rules[at]
}

// withByRisk appends the rule for `default: by_risk` to the rules if this default applies.
func (s *Set) withByRisk(rules []*rule, call *Call) []*rule {
	if r := s.byRiskRule(rules, call); r != nil {
		return append(rules, r)
	}
	return rules
}

// byRiskRule returns the rule for `default: by_risk`. It returns nil if the server has a different default, or if the
// default does not apply to any principal of the call. The default does not apply to a principal to whom a rule with an
// action applies, or for whom [Call.failedAllow] returns a rule.
func (s *Set) byRiskRule(rules []*rule, call *Call) *rule {
	table := s.fallbacks.find(call.Server).table
	if table == nil || !call.OfTool() {
		return nil
	}
	for i := range call.Subject.size() {
		if call.strictest(rules, i).action == ActionNone && call.failedAllow(rules, i) == nil {
			return table[outcomeFor(&call.Facts)]
		}
	}
	return nil
}

// strictest returns the verdict of the rules for the principal with index i. The action in the verdict is ActionNone if
// no rule with an action applies to the principal.
func (c *Call) strictest(rules []*rule, i int) verdict {
	var best verdict
	for _, r := range rules {
		if r.Action == ActionNone || r.Action < best.action || !c.applies(r, i) {
			continue
		}
		if r.ref.Rule == byRiskName && c.failedAllow(rules, i) != nil { // defaults do not apply
			continue
		}
		own := verdict{action: r.Action, rule: r}
		if own.failed = c.failure(r, i); own.failed != nil {
			own.failedRule = r
		}
		if own.beats(&best) {
			best = own
		}
	}
	return best
}

// beats reports whether v replaces the earlier verdict o. The stricter action wins. For equal actions, a verdict whose
// condition could be evaluated wins. If this does not decide either, a verdict with a reason wins.
func (v *verdict) beats(o *verdict) bool {
	switch {
	case v.action != o.action:
		return v.action > o.action
	case (v.failed == nil) != (o.failed == nil):
		return v.failed == nil
	}
	return v.reason() != "" && o.reason() == ""
}

func (v *verdict) reason() string {
	if v.rule == nil || v.action == ActionHide {
		return ""
	}
	return v.rule.Reason
}

// action returns the action of a default. For by_risk, it returns ActionDeny, because [Set.byRiskRule] returns a rule
// wherever by_risk applies.
func (f fallback) action() Action {
	if f.value == DefaultAllow {
		return ActionAllow
	}
	return ActionDeny
}

// permits reports whether a default can allow calls or require approval for them.
func (f fallback) permits() bool { return f.value == DefaultAllow || f.value == DefaultByRisk }

// givesReason reports whether the decision comes from a rule and has a reason. If so, the tool is listed even if its
// calls are refused, so that the model can learn the reason.
func (v *verdict) givesReason(d *Decision) bool { return v.rule != nil && d.Message != "" }

// decision converts a verdict to a decision without limits. Only tools can be hidden. A rule that hides a method only
// denies it, because the MCP specification makes all methods known.
func (v verdict) decision(call *Call) Decision {
	d := Decision{Message: v.reason(), ChainIndex: v.chain}
	if v.rule != nil {
		d.Rule, d.RuleDigest = v.rule.ref, v.rule.digest
	}
	switch {
	case v.failed != nil && v.action == ActionDeny:
		d.Code, d.Message = TypeError, "" // [Set.decide] sets the message
		d.Rule, d.RuleDigest = v.failedRule.ref, v.failedRule.digest
	case v.conflict[0] != nil:
		d.Code = DeniedByRule
		d.Message = v.conflict[0].ref.String() + " and " + v.conflict[1].ref.String() +
			" require approval, and their " + v.conflictText + " in common"
	case v.action == ActionAllow:
		d.Effect, d.Idempotent = Allow, v.idempotent
	case v.action == ActionRequireApproval:
		d.Effect, d.Code, d.Approval, d.Idempotent = RequireApproval, ApprovalRequired, v.terms, v.idempotent
	case v.action == ActionHide && call.OfTool():
		d.Code, d.Hidden = ToolUnknown, true
	case !call.OfTool() && (v.rule == nil || v.action == ActionHide):
		d.Code, d.Message = MethodDenied, v.hintText()
	case v.rule != nil:
		d.Code = DeniedByRule
	default:
		d.Code, d.Message = DeniedByDefault, v.hintText()
	}
	return d
}

// hintText returns the reason to show if a default refuses the call.
func (v *verdict) hintText() string {
	if v.hint == nil {
		return ""
	}
	return v.hint.Reason
}

// failureText returns the message for a condition that can't be evaluated. It names the rule and the error. If a rule
// refuses the call, it also contains the rule's reason.
func (v verdict) failureText(call *Call) string {
	why := v.failed
	if explained := call.explain(v.failedRule, v.chain); explained.Err != nil {
		why = explained.Err
	}
	text := "the condition of rule " + v.failedRule.ref.String() + " can't be evaluated: " + why.Error()
	if reason := v.reason(); reason != "" {
		text += "; " + reason
	}
	return text
}

// A Visibility says whether a tool is in the list that a caller sees. The zero value means that it is not in the list.
type Visibility struct {
	// Visible is true if the tool is listed.
	Visible bool
	// Code is the code with which a call to the tool would be refused or held for approval. It is empty if the call
	// would be allowed.
	Code Code
	// Rule is the rule that decides whether the tool is visible. It is zero if no rule decides this.
	Rule RuleRef
}

// Visible reports whether a caller sees a tool in a server's list. A tool is visible if calls to it could be allowed or
// could require approval. It is also visible if a rule denies these calls with a reason, so that the model can learn
// the reason. A tool whose definition was not accepted is never visible.
func (s *Set) Visible(subject Subject, server, tool string, facts Facts) Visibility {
	call := Call{Server: server, Tool: tool, Subject: subject, Facts: facts, listed: true}
	if code := refusal(&call); code != "" {
		return Visibility{Code: code}
	}
	if code, _ := facts.Status.refusal(""); code != "" {
		return Visibility{Code: code}
	}
	var space [16]*rule
	v := s.mostPermissive(s.find(space[:0], &call), &call)
	d := v.decision(&call)
	if s.opens(&call) {
		d = d.open(&call)
	}
	out := Visibility{Visible: d.Effect != Deny || v.givesReason(&d), Rule: d.Rule}
	if d.Effect != Allow {
		out.Code = d.Code
	}
	return out
}
