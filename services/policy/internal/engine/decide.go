package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Decide decides a call. Its time grows with the number of rules whose names or pattern starts fit the call's tool or
// method, not with the number of other rules.
func (s *Set) Decide(call Call) Decision {
	d, _ := s.decide(&call)
	return d
}

// Evaluates reports whether deciding a call may evaluate conditions on its arguments, which can take thousands of
// times as long as the rest of a decision.
func (s *Set) Evaluates(call Call) bool {
	if !s.conditional || refusal(&call) != "" {
		return false
	}
	var space [16]*rule
	return slices.ContainsFunc(s.find(space[:0], &call), func(r *rule) bool { return r.where != nil })
}

func (s *Set) decide(call *Call) (Decision, verdict) {
	if code := refusal(call); code != "" {
		return Decision{Code: code}, verdict{}
	}
	var space [16]*rule
	rules := s.find(space[:0], call)
	if r := s.advised(rules, call); r != nil {
		rules = append(rules, r)
	}
	v := s.judge(rules, call)
	d := v.decision(call)
	if code, why := call.Facts.Standing.refusal(call.Server); code != "" && d.Effect != Deny {
		return Decision{Code: code, Message: why, ChainIndex: v.chain}, v
	}
	if d.Effect == Deny {
		if d.Code == DeniedByDefault && v.chain == 0 && call.asksModel() {
			d.Message = modelsForAgents
		}
		return d, v
	}
	d.Limits = s.limits(rules, call)
	if len(d.Limits) > MaxLimits {
		d.Effect, d.Code, d.Limits, d.Approval, d.Idempotent = Deny, DeniedByRule, nil, nil, false
		d.Message = "more limits apply to the call than can be reserved at once"
	}
	return d, v
}

// refusal returns why a call is refused before any rule is consulted, or "".
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

// A verdict is the result of the rules for a call.
type verdict struct {
	// action is the winner's action. ActionNone denies, because there is no default.
	action Action
	// rule is the rule that won; nil if a default did.
	rule *rule
	// chain is the index of the principal whose verdict this is.
	chain int
	// terms are those of all rules that require approval, if action is ActionRequireApproval.
	terms *ApprovalTerms
	// idempotent says that all rules that decide declare the call idempotent.
	idempotent bool
	// unopened is a rule that requires approval and only matches because the call's URI could be taken for one that it
	// names, if no rule allows the URI; otherwise nil.
	unopened *rule
	// conflict has two rules without a common approver group.
	conflict [2]*rule
}

// judge combines the rules, which match the call. If none has an action, a call of a tool gets the default, a
// notification of the protocol passes, and any other method is denied.
func (s *Set) judge(rules []*rule, call *Call) verdict {
	var best verdict
	for i := range call.Subject.size() {
		own := strictest(rules, call.Subject.at(i))
		if i == 0 && call.asksModel() && own.opens() && !namedAsker(rules, call) {
			own = verdict{action: ActionDeny}
		}
		if own.action == ActionRequireApproval && !isOpened(rules, call, call.Subject.at(i)) {
			own = verdict{unopened: own.rule}
		}
		own.chain = i
		if own.action == ActionNone {
			own.action = ActionDeny
			switch {
			case i == 0 && call.asksModel():
			case call.OfTool():
				own.action = s.fallbacks.find(call.Server).action()
			case slices.Contains(mcpmethod.Notifications(), call.Method):
				own.action = ActionAllow
			}
		}
		if i == 0 || own.beats(&best) {
			best = own
		}
	}
	if best.action == ActionRequireApproval {
		s.poolTerms(&best, rules, call)
	}
	best.idempotent = best.rule != nil && best.rule.Idempotent && idempotent(rules, &call.Subject)
	return best
}

// advised returns the rule for `default: by_risk`, if that is the default and no rule with an action concerns some
// principal; otherwise nil.
func (s *Set) advised(rules []*rule, call *Call) *rule {
	table := s.fallbacks.find(call.Server).table
	if table == nil || !call.OfTool() {
		return nil
	}
	for i := range call.Subject.size() {
		if strictest(rules, call.Subject.at(i)).action == ActionNone {
			return table[kindFor(&call.Facts)]
		}
	}
	return nil
}

// strictest returns the verdict of the rules on one principal: ActionNone if no rule that concerns it has an action.
func strictest(rules []*rule, p *Principal) verdict {
	var best verdict
	for _, r := range rules {
		own := verdict{action: r.Action, rule: r}
		if r.Action != ActionNone && own.beats(&best) && r.concerns(p) {
			best = own
		}
	}
	return best
}

// beats reports whether v wins over the earlier verdict o.
func (v *verdict) beats(o *verdict) bool {
	if v.action != o.action {
		return v.action > o.action
	}
	return v.reason() != "" && o.reason() == ""
}

func (v *verdict) reason() string {
	if v.rule == nil || v.action == ActionHide {
		return ""
	}
	return v.rule.Reason
}

// action returns what a default does. No default denies; by_risk is decided by a rule of its own.
func (f fallback) action() Action {
	if f.value == DefaultAllow {
		return ActionAllow
	}
	return ActionDeny
}

// opens reports whether a default may allow something or require approval for it.
func (f fallback) opens() bool { return f.value == DefaultAllow || f.value == DefaultByRisk }

// decision turns a verdict into a decision without limits. A method can't be hidden as a tool can, because the
// specification makes it known.
func (v verdict) decision(call *Call) Decision {
	d := Decision{Message: v.reason(), ChainIndex: v.chain}
	if v.rule != nil {
		d.Rule, d.RuleDigest = v.rule.ref, v.rule.digest
	}
	switch {
	case v.conflict[0] != nil:
		d.Code = DeniedByRule
		d.Message = v.conflict[0].ref.String() + " and " + v.conflict[1].ref.String() +
			" ask for approval by groups that have none in common"
	case v.action == ActionAllow:
		d.Effect, d.Idempotent = Allow, v.idempotent
	case v.action == ActionRequireApproval:
		d.Effect, d.Code, d.Approval, d.Idempotent = RequireApproval, ApprovalRequired, v.terms, v.idempotent
	case v.action == ActionHide && call.OfTool():
		d.Code, d.Hidden = ToolUnknown, true
	case !call.OfTool() && (v.rule == nil || v.action == ActionHide):
		d.Code = MethodDenied
	case v.rule != nil:
		d.Code = DeniedByRule
	default:
		d.Code = DeniedByDefault
	}
	return d
}

// A Visibility says whether a tool is listed. The zero value hides it.
type Visibility struct {
	// Visible says that the tool is listed.
	Visible bool
	// Code says why a call would be refused or would wait; empty if it would be allowed.
	Code Code
	// Rule is the rule that decided; zero if no rule did.
	Rule RuleRef
}

// Visible reports whether a subject may see a tool of a server in a list. A tool is shown if a call could be allowed,
// and if a rule denies it with a reason, so that the model can learn the reason. A rule that hides wins over one that
// gives a reason. A definition that is not accepted is never shown.
func (s *Set) Visible(subject Subject, server, tool string, facts Facts) Visibility {
	call := Call{Server: server, Tool: tool, Subject: subject, Facts: facts}
	if code := refusal(&call); code != "" {
		return Visibility{Code: code}
	}
	if code, _ := facts.Standing.refusal(""); code != "" {
		return Visibility{Code: code}
	}
	var space [16]*rule
	rules := s.find(space[:0], &call)
	if r := s.advised(rules, &call); r != nil {
		rules = append(rules, r)
	}
	d := s.judge(rules, &call).decision(&call)
	v := Visibility{Visible: d.Effect != Deny || d.Message != "", Rule: d.Rule}
	if d.Effect != Allow {
		v.Code = d.Code
	}
	return v
}
