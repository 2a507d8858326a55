package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// Decide makes the decision on a call. The running time grows with the number of rules that have a pattern whose
// literal prefix matches the call's tool name or method. Other rules are not evaluated.
func (s *Set) Decide(call Call) Decision {
	d, _ := s.decideObserved(&call)
	return d
}

// EvaluatesConditions reports whether the decision on a call depends on conditions that read the call's arguments or
// the time, or on a check of the arguments against the tool's schema. Such an evaluation can take thousands of times as
// long as the rest of the decision.
func (s *Set) EvaluatesConditions(call Call) bool {
	s = s.withoutObservation() // observed rules are evaluated too
	if !s.conditional || refusal(&call) != "" {
		return false
	}
	var space [16]*rule
	return slices.ContainsFunc(s.find(space[:0], &call), func(r *rule) bool { return r.readsCall() })
}

// readsCall reports whether the rule checks the arguments of a call against the tool's schema, or has a condition that
// reads the arguments or the time. The condition can belong to the rule or to its grant.
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

// refusal returns the code of the refusal if a call is refused before any rule is evaluated, and "" otherwise.
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

// A verdict is the result of all rules for a call.
type verdict struct {
	// action is the strictest action, which determines the decision.
	action Action
	// rule is the rule with this action. It is nil if the action comes from a default.
	rule *rule
	// chain is the index of the principal that the verdict is based on; see [Decision.ChainIndex].
	chain int
	// terms is set if action is ActionRequireApproval. An approval under these terms satisfies all rules that require
	// approval.
	terms *ApprovalTerms
	// idempotent is true if all rules with an action that apply to the call declare the call idempotent. At least one
	// such rule must apply to each principal.
	idempotent bool
	// If the call is refused because a condition could not be evaluated, failed is the reason for the failure, and
	// failedRule is the rule that has the condition.
	failed     error
	failedRule *rule
	// hint is a rule whose reason is shown if a default refuses the call. It is nil if there is no such rule.
	hint *rule
	// inexact is a rule with ActionRequireApproval that does not match the call's URI exactly. It matches only because
	// a server could interpret the URI as a URI that the rule matches. The field inexact is set only if no rule admits
	// the call.
	inexact *rule
	// conflict contains two rules whose lists of approvers, or of acr values, have nothing in common. Both are nil if
	// there is no conflict. conflictText says which lists have nothing in common.
	conflict     [2]*rule
	conflictText string
	// strict is a rule with Strict that refuses the call. It is nil if there is no such rule.
	strict *rule
	// scoped is a rule that needs a scope that the principal lacks. It is nil if no scope is missing.
	scoped *rule
}

// combine returns the verdict of the rules that match a call. If none of these rules has an action, the default applies
// to tools/call, notifications of the protocol are allowed, and any other method is denied.
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

// applyDefault sets the action of a verdict if no rule with an action applies to the verdict's principal.
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

// failedAllow returns a rule that might allow the call for the principal with index i, but whose condition can't be
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

// hint returns a rule that applies to the principal with index i and has a reason but no action. It returns nil if
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

// withByRisk appends the rule for `default: by_risk` to rules, if that default applies.
func (s *Set) withByRisk(rules []*rule, call *Call) []*rule {
	if r := s.byRiskRule(rules, call); r != nil {
		return append(rules, r)
	}
	return rules
}

// byRiskRule returns the rule for `default: by_risk`. It returns nil if another default applies, or if no principal of
// the call needs the default. A principal does not need the default if at least one rule with an action applies to the
// principal, or if a rule that might allow the call has a condition that can't be evaluated.
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

// strictest returns the verdict of the rules for the principal with index i. The verdict's action is ActionNone if no
// rule with an action applies to the principal.
func (c *Call) strictest(rules []*rule, i int) verdict {
	var best verdict
	for _, r := range rules {
		if r.Action == ActionNone || r.Action < best.action || !c.applies(r, i) {
			continue
		}
		if r.ref.Rule == byRiskName && c.failedAllow(rules, i) != nil { // no default applies
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

// beats reports whether v is chosen instead of the earlier verdict o. The verdict with the stricter action is chosen.
// If both have the same action, the verdict whose condition could be evaluated is chosen. If that is the case for both
// or for neither, the verdict with a reason is chosen.
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

// action returns the action of a default. For by_risk it is ActionDeny, because [Set.byRiskRule] replaces that default
// with a rule.
func (f fallback) action() Action {
	if f.value == DefaultAllow {
		return ActionAllow
	}
	return ActionDeny
}

// permits reports whether a default may allow calls or require approval for calls.
func (f fallback) permits() bool { return f.value == DefaultAllow || f.value == DefaultByRisk }

// givesReason reports whether a rule refuses with a reason. If it does, the tool is listed, so that the model can learn
// the reason.
func (v *verdict) givesReason(d *Decision) bool { return v.rule != nil && d.Message != "" }

// decision converts a verdict to a decision without limits. Only tools can be hidden. A rule that hides a method denies
// it, because methods are known from the MCP specification.
func (v verdict) decision(call *Call) Decision {
	d := Decision{Message: v.reason(), ChainIndex: v.chain}
	if v.rule != nil {
		d.Rule, d.RuleDigest = v.rule.ref, v.rule.digest
	}
	switch {
	case v.failed != nil && v.action == ActionDeny:
		d.Code, d.Message = TypeError, "" // decide sets the message
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

// hintText returns the reason that is shown if a default refuses the call.
func (v *verdict) hintText() string {
	if v.hint == nil {
		return ""
	}
	return v.hint.Reason
}

// failureText says which condition can't be evaluated for the call, and why. If the rule with this condition refuses
// calls, the text ends with the rule's reason.
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

// A Visibility says whether a tool is visible in a list. The zero value means that the tool is omitted.
type Visibility struct {
	// Visible reports whether the tool is listed.
	Visible bool
	// Code is the code that a call to the tool would get if it were refused or held for approval. It is empty if the
	// call would be allowed.
	Code Code
	// Rule is the rule that determined the visibility. It is zero if no rule did.
	Rule RuleRef
}

// Visible says whether a caller sees a tool in a server's list. The tool is visible if a call to it could be allowed
// or could require approval. It is also visible if a rule denies it with a reason, so that the model can learn the
// reason. A tool whose definition is not accepted is never visible.
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
