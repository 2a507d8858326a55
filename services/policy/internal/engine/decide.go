package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// Decide judges a call. Its time grows with the number of rules that name the
// call's tool, or its method, or whose patterns fit the start of its name; not with the
// others.
func (s *Set) Decide(call Call) Decision {
	d, _ := s.decide(&call)
	return d
}

// Evaluates reports whether judging a call may evaluate conditions on its arguments,
// which arguments can make take thousands of times as long as all else.
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
		d.Message = "more limits bear on the call than can be reserved at once"
	}
	return d, v
}

// refusal returns why a call is refused before any rule is asked, or nothing.
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

// A verdict is what came of pooling the rules.
type verdict struct {
	// action is that of the winner. ActionNone denies, for want of a default.
	action Action
	// rule won; nil where a default did.
	rule *rule
	// chain is the place of the principal whose verdict it is.
	chain int
	// terms are those of all rules that ask for approval, where action does.
	terms *ApprovalTerms
	// idempotent says that all rules that decide call the call idempotent.
	idempotent bool
	// unopened is a rule that asks people about what could be taken for the call's URI, where no
	// rule allows that; nil for none.
	unopened *rule
	// conflict names two rules of which no approver can content both.
	conflict [2]*rule
}

// judge pools the rules, which are about the call. Where none has an action the default
// counts, of which there is one for tools alone; notifications of the protocol pass then, as
// far as what they are about does.
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

// advised returns the rule that stands for `default: by_risk`, where that is the default
// and no rule with an action is about some principal; else nil.
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

// strictest returns the verdict of the rules on one principal: ActionNone where
// none that concerns it has an action.
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

// beats reports whether v wins over o, which came before.
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

// action is what a default does. None at all denies; of by_risk a rule says what it does.
func (f fallback) action() Action {
	if f.value == DefaultAllow {
		return ActionAllow
	}
	return ActionDeny
}

// opens reports whether a default may allow something, or hold it for people.
func (f fallback) opens() bool { return f.value == DefaultAllow || f.value == DefaultByRisk }

// decision turns a verdict on a call into a decision without limits. A method can't be hidden
// as a tool can: that there is one stands in the specification.
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
	// Visible says that it is.
	Visible bool
	// Code says why a call would be refused, or held; empty where it would not.
	Code Code
	// Rule decided; zero where no rule did.
	Rule RuleRef
}

// Visible says whether a subject may see a tool of a server in a list: where a
// call might be let through, and where a rule denies it and says why, so that the
// model can learn the reason. A rule that hides wins over one that gives a reason.
//
// A definition that nobody has accepted is shown to nobody.
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
