package engine

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// An Explanation is a decision with the reasons for it.
type Explanation struct {
	// Decision is the decision that [Set.Decide] makes.
	Decision Decision
	// Rules contains an entry for each rule in each document and for each principal of the call. These principals are the
	// caller and its delegation chain. Rules is sorted by document and rule. It is empty if the call was refused before
	// rules were evaluated.
	Rules []ConsideredRule
	// Why explains the decision in one sentence.
	Why string
}

// A ConsideredRule says how one rule was applied to one principal of a call. The principal is the caller or in its
// delegation chain.
type ConsideredRule struct {
	// Rule is the rule that was applied.
	Rule RuleRef
	// Matched is true if all checks succeeded. The checks "grant.where", "needs_scope" and "forward" do not affect
	// Matched.
	Matched bool
	// Checks lists the comparisons that were made for the rule.
	Checks []Check
	// Action is the rule's action.
	Action Action
	// ChainIndex is the index of the principal to whom the rule was applied, as in [Decision.ChainIndex].
	ChainIndex int
	// Observed is true if the rule is not enforced because the rule, its document or the server is in observe mode.
	Observed bool
}

// A Check is one comparison between a rule and a call.
type Check struct {
	// Name is a key of `match`, or else "document.server", "when", "otherwise", "grant.where", "needs_scope" or "forward".
	// The condition of a rule is checked only if all earlier checks succeeded. "grant.where", "needs_scope" and "forward"
	// are checked only if the rule matches.
	Name string
	// Want is the requirement in the document. It is a condition, or patterns or scopes separated by ", ".
	Want string
	// Got is the value in the call. For a condition, it contains the result, the values that were read, and the
	// comparisons that determined the result. If the condition can't be evaluated, Got is the error.
	Got string
	// Held is true if the check succeeded. This means that a pattern matched, that the grant's condition is true, that the
	// principal has all scopes, or that the arguments satisfy the tool's schema. For a rule's condition, Held is true if
	// the rule applies with the condition's result. If the condition can't be evaluated, the rule applies unless it allows
	// calls.
	Held bool
}

// Explain makes the same decision on a call as [Set.Decide], and explains it. The running time grows with the number of
// rules.
func (s *Set) Explain(call Call) Explanation {
	d, v := s.decideObserved(&call)
	e := Explanation{Decision: d}
	if code := refusal(&call); code != "" {
		e.Why = refusalText(code)
		return e
	}
	if stop, _, stopped := s.stops.find(&call); stopped {
		e.Why = fmt.Sprintf("An operator has stopped %s. A stop refuses a call before any rule is evaluated.", stop.Selector)
		return e
	}
	observed := s.observedRules(&call)
	for _, r := range s.withoutObservation().rules {
		for i := range call.Subject.size() {
			c := r.consider(&call, i)
			c.Observed = observed[r.ref]
			if r.where != nil && c.Matched {
				c.Checks = append(c.Checks, r.checkGrant(&call, i))
			}
			if len(r.NeedsScope) > 0 && c.Matched {
				c.Checks = append(c.Checks, r.checkScope(&call, i))
			}
			if r.Strict && c.Matched {
				c.Checks = append(c.Checks, checkStrict(&call))
			}
			e.Rules = append(e.Rules, c)
		}
	}
	e.Why = s.whyObserved(d, v, &call)
	return e
}

func (r *rule) consider(call *Call, chain int) ConsideredRule {
	p := call.Subject.at(chain)
	c := ConsideredRule{Rule: r.ref, Matched: true, Action: r.Action, ChainIndex: chain}
	check := func(name string, want []string, got string, held bool) {
		if len(want) == 0 {
			return
		}
		c.Checks = append(c.Checks, Check{Name: name, Want: strings.Join(want, ", "), Got: got, Held: held})
		c.Matched = c.Matched && held
	}
	tool := r.Match.Tool
	if r.Tool != "" {
		tool = []string{r.Tool}
	}
	check("document.server", r.documentServerText, call.Server, r.documentServers.match(call.Server))
	if method := cmp.Or(call.Method, MethodToolsCall); len(r.Match.Method) > 0 || !call.OfTool() {
		check("method", r.Match.methods(), method, r.methods.match(method))
	}
	check("tool", tool, call.Tool, call.OfTool() && r.tools.match(call.Tool))
	r.checkNames(call, check)
	check("server", r.Match.Server, call.Server, r.servers.match(call.Server))
	check("agent", r.Match.Agent, p.Agent, r.agents.match(p.Agent))
	check("principal", r.Match.Principal, p.Name, r.names.match(p.Name))
	check("groups", r.Match.Groups, strings.Join(p.Groups, ", "), r.groups.matchAny(p.Groups))
	check("tenant", r.Match.Tenant, p.Tenant, r.tenants.match(p.Tenant))
	if r.hasToolProperties {
		r.checkProperties(call, check)
	}
	if r.when != nil && c.Matched {
		when := r.checkWhen(call, chain)
		c.Checks = append(c.Checks, when)
		c.Matched = when.Held
	}
	return c
}

// checkWhen evaluates the condition of a rule for the principal whose index is chain.
func (r *rule) checkWhen(call *Call, chain int) Check {
	c := Check{Name: "when", Want: r.condition()}
	if r.Otherwise {
		c.Name = "otherwise"
	}
	explained := call.explain(r, chain)
	c.Held, c.Got = r.appliesAt(explained.Result), evaluationText(explained)
	return c
}

// evaluationText describes an evaluation: the result, the values that were read, and the comparisons that determined
// the result.
func evaluationText(e condition.Explanation) string {
	if e.Err != nil {
		return "can't be evaluated: " + e.Err.Error()
	}
	text, opposite := "true", "false"
	if e.Result == condition.False {
		text, opposite = opposite, text
	}
	if len(e.Values) > 0 {
		text += ": " + strings.Join(e.Values, ", ")
	}
	if len(e.Deciding) > 0 {
		text += "; would be " + opposite + " if " + strings.Join(e.Deciding, ", or if ")
	}
	return text
}

// checkNames adds the checks of the patterns for prompts and URIs.
func (r *rule) checkNames(call *Call, check func(name string, want []string, got string, held bool)) {
	has := ""
	switch call.nameKind() {
	case namesPrompt:
		has = call.Tool
	case namesResource:
		has = call.Tool
		if err := call.uri().notPlain; err != nil && len(r.uris) > 0 {
			has += " (which " + err.Error() + ")"
		}
	case namesUnknown:
		has = "unknown"
	case namesNone:
	}
	check("prompt", r.Match.Prompt, has, r.matchesName(call))
	check("uri", r.Match.URI, has, r.matchesName(call))
}

// checkProperties adds one check for each of the tool's category, risk, tags and annotations.
func (r *rule) checkProperties(call *Call, check func(name string, want []string, got string, held bool)) {
	f := &call.Facts
	alone := func(m Match) bool {
		part := rule{Rule: Rule{Action: r.Action, Match: m}, hasToolProperties: true}
		return call.OfTool() && part.matchesProperties(f)
	}
	has := "ignored, because the server is not trusted"
	if f.Hints != nil {
		has = strings.Join((&Match{Annotations: f.Hints}).hintTexts(), ", ")
	}
	check("category", r.Match.Category, cmp.Or(f.Category, "unknown"), alone(Match{Category: r.Match.Category}))
	check("risk", r.Match.Risk, cmp.Or(f.Risk, "unknown"), alone(Match{Risk: r.Match.Risk}))
	check("tags", r.Match.Tags, strings.Join(f.Tags, ", "), alone(Match{Tags: r.Match.Tags}))
	check("annotations", r.Match.hintTexts(), has, alone(Match{Annotations: r.Match.Annotations}))
}

// checkGrant evaluates the condition of the rule's grant for the principal whose index is chain.
func (r *rule) checkGrant(call *Call, chain int) Check {
	c := Check{Name: "grant.where", Want: r.Grant.Condition()}
	result, err := call.evaluate(r.where, chain)
	if c.Held, c.Got = result == condition.True, strconv.FormatBool(result == condition.True); err != nil {
		c.Got = err.Error()
	}
	return c
}

func refusalText(code Code) string {
	switch code { //nolint:exhaustive // rules cause the other codes
	case Unauthenticated:
		return "A principal has no tenant or no name, or the caller's chain has too many principals."
	case ToolUnknown:
		return "The server's name is not valid."
	default:
		return "The tool's name is not valid."
	}
}

func (s *Set) why(d Decision, v verdict, call *Call) string {
	server, facts := call.Server, &call.Facts
	whose := "the caller"
	if v.chain > 0 {
		whose = fmt.Sprintf("principal %d of the caller's chain", v.chain)
	}
	switch {
	case d.Code == ToolChanged, d.Code == ToolQuarantined, d.Code == ToolUnknown && v.action < ActionDeny:
		return fmt.Sprintf("The strictest action of the rules that match is %s, but the catalog allows no call of the tool with this definition: it is %s.", v.action, facts.Status)
	case v.strict != nil, v.scoped != nil:
		return fmt.Sprintf("The strictest action of the rules that match is %s, but %s.", v.action, d.Message)
	case d.Code == TypeError:
		return fmt.Sprintf("Rule %s concerns %s, but its condition can't be evaluated for this call, which counts against the caller.", d.Rule, whose)
	case v.rule != nil && v.rule.ref.Rule == byRiskName:
		return fmt.Sprintf("No rule with an action matches %s; the strictest default of the documents for the server is by_risk, in %s, and the tool's risk is %s.%s",
			whose, v.rule.ref.Document, cmp.Or(facts.Risk, "unknown"), uncertaintyNote(facts))
	case d.Effect == Deny && v.action < ActionDeny:
		return fmt.Sprintf("The strictest action of the rules that match is %s, but %s.", v.action, d.Message)
	case v.rule != nil:
		return fmt.Sprintf("Rule %s matches %s with %s, and no rule that matches is stricter.", v.rule.ref, whose, v.action)
	}
	if v.chain == 0 && v.rule == nil && call.needsModelRule() {
		return "No rule with an action names both the tool and the caller: " + modelRefusal + "."
	}
	f := s.fallbacks.find(server)
	if d.Effect == Allow && !call.OfTool() {
		return fmt.Sprintf("No rule with an action matches the notification %s for %s; notifications of the protocol pass unless a rule denies them or the resource that they concern.", strconv.Quote(call.Method), whose)
	}
	if v.inexact != nil {
		return fmt.Sprintf("Rule %s requires approval only for URIs exactly as it names them; this URI could only be read as one of them, and no rule allows it for %s.", v.inexact.ref, whose)
	}
	if !call.OfTool() {
		return fmt.Sprintf("No rule with an action matches the method %s for %s, and defaults apply only to tools/call.", strconv.Quote(call.Method), whose)
	}
	if f.value == DefaultNone {
		return fmt.Sprintf("No rule with an action matches %s, and no document for the server has a default.", whose)
	}
	return fmt.Sprintf("No rule with an action matches %s; the strictest default of the documents for the server is %s, in %s.",
		whose, f.value, f.document)
}
