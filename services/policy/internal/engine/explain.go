package engine

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// An Explanation is a decision with its reasons.
type Explanation struct {
	// Decision is what [Set.Decide] returns.
	Decision Decision
	// Rules are all rules of all documents, by the names of document and rule, each once for the caller and once for
	// each principal behind it. Empty if the call is refused before any rule is consulted.
	Rules []Considered
	// Why says in one sentence why the winner won.
	Why string
}

// A Considered is the result of one rule for a call of one principal.
type Considered struct {
	// Rule is the rule.
	Rule RuleRef
	// Matched says that every check except grant.where held.
	Matched bool
	// Checks are the comparisons of the rule.
	Checks []Check
	// Action is the rule's action.
	Action Action
	// ChainIndex is the index of the principal: 0 for the caller.
	ChainIndex int
}

// A Check is one comparison of a rule.
type Check struct {
	// Name is a key of `match`, "document.server", or "grant.where", which is checked only if the others held and does
	// not affect the match.
	Name string
	// Want is what the document requires: patterns separated by ", ", or a condition.
	Want string
	// Got is what the call has, in the same form; for a condition "true", "false", or why it can't be evaluated.
	Got string
	// Held says that one of the patterns matched, or that the condition holds.
	Held bool
}

// Explain decides a call as [Set.Decide] does and says why. Its time grows with the number of rules.
func (s *Set) Explain(call Call) Explanation {
	d, v := s.decide(&call)
	e := Explanation{Decision: d}
	if code := refusal(&call); code != "" {
		e.Why = refusalWhy(code)
		return e
	}
	args, unread := condition.ParseArguments(call.Params)
	for _, r := range s.rules {
		for i := range call.Subject.size() {
			c := r.consider(&call, i)
			if r.where != nil && c.Matched {
				c.Checks = append(c.Checks, r.considerGrant(args, unread))
			}
			e.Rules = append(e.Rules, c)
		}
	}
	e.Why = s.why(d, v, &call)
	return e
}

func (r *rule) consider(call *Call, chain int) Considered {
	p := call.Subject.at(chain)
	c := Considered{Rule: r.ref, Matched: true, Action: r.Action, ChainIndex: chain}
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
	check("document.server", r.homeText, call.Server, r.home.match(call.Server))
	if method := cmp.Or(call.Method, MethodToolsCall); len(r.Match.Method) > 0 || !call.OfTool() {
		check("method", r.Match.methods(), method, r.methods.match(method))
	}
	check("tool", tool, call.Tool, call.OfTool() && r.tools.match(call.Tool))
	r.considerNames(call, check)
	check("server", r.Match.Server, call.Server, r.servers.match(call.Server))
	check("agent", r.Match.Agent, p.Agent, r.agents.match(p.Agent))
	check("principal", r.Match.Principal, p.Name, r.names.match(p.Name))
	check("groups", r.Match.Groups, strings.Join(p.Groups, ", "), r.groups.matchAny(p.Groups))
	check("tenant", r.Match.Tenant, p.Tenant, r.tenants.match(p.Tenant))
	if r.classed {
		r.considerClass(call, check)
	}
	return c
}

// considerNames checks the prompt or the resource that the call names.
func (r *rule) considerNames(call *Call, check func(name string, want []string, got string, held bool)) {
	has := ""
	switch call.naming() {
	case namesPrompt:
		has = call.Tool
	case namesResource:
		has = call.Tool
		if err := call.uri().plain; err != nil && len(r.uris) > 0 {
			has += " (which " + err.Error() + ")"
		}
	case namesUnknown:
		has = "unknown"
	case namesNone:
	}
	check("prompt", r.Match.Prompt, has, r.aboutName(call))
	check("uri", r.Match.URI, has, r.aboutName(call))
}

// considerClass checks the tool's class. A property that is not known matches in every rule except one that allows.
func (r *rule) considerClass(call *Call, check func(name string, want []string, got string, held bool)) {
	f := &call.Facts
	alone := func(m Match) bool {
		part := rule{Rule: Rule{Action: r.Action, Match: m}, classed: true}
		return call.OfTool() && part.fits(f)
	}
	has := "not believed, for the server is not trusted"
	if f.Hints != nil {
		has = strings.Join((&Match{Annotations: f.Hints}).hints(), ", ")
	}
	check("category", r.Match.Category, cmp.Or(f.Category, "unknown"), alone(Match{Category: r.Match.Category}))
	check("risk", r.Match.Risk, cmp.Or(f.Risk, "unknown"), alone(Match{Risk: r.Match.Risk}))
	check("tags", r.Match.Tags, strings.Join(f.Tags, ", "), alone(Match{Tags: r.Match.Tags}))
	check("annotations", r.Match.hints(), has, alone(Match{Annotations: r.Match.Annotations}))
}

// considerGrant reports whether the grant would cover a call with these arguments, or why they can't be read. It does
// not affect whether the rule matches.
func (r *rule) considerGrant(args condition.Arguments, unread error) Check {
	c := Check{Name: "grant.where", Want: r.Grant.Condition()}
	if unread != nil {
		c.Got = unread.Error()
		return c
	}
	held, err := r.where.Holds(args)
	if c.Held, c.Got = held, strconv.FormatBool(held); err != nil {
		c.Got = err.Error()
	}
	return c
}

func refusalWhy(code Code) string {
	switch code { //nolint:exhaustive // the others come from rules
	case Unauthenticated:
		return "A principal lacks its tenant or its name, or too many stand behind the caller."
	case ToolUnknown:
		return "The server's name is not one that a server can have."
	default:
		return "The tool's name is not one that a tool can have."
	}
}

func (s *Set) why(d Decision, v verdict, call *Call) string {
	server, facts := call.Server, &call.Facts
	whose := "the caller"
	if v.chain > 0 {
		whose = fmt.Sprintf("principal %d behind the caller", v.chain)
	}
	switch {
	case d.Code == ToolChanged, d.Code == ToolQuarantined, d.Code == ToolUnknown && v.action < ActionDeny:
		return fmt.Sprintf("The strictest action of the rules that match is %s, but the catalog allows no call of the tool with this definition: it is %s.", v.action, facts.Standing)
	case v.rule != nil && v.rule.ref.Rule == byRiskName:
		return fmt.Sprintf("No rule with an action matches %s; the strictest default of the documents for the server is by_risk, in %s, and the tool's risk is %s.%s",
			whose, v.rule.ref.Document, cmp.Or(facts.Risk, "unknown"), doubt(facts))
	case d.Effect == Deny && v.action < ActionDeny:
		return fmt.Sprintf("The strictest action of the rules that match is %s, but %s.", v.action, d.Message)
	case v.rule != nil:
		return fmt.Sprintf("Rule %s matches %s with %s, and no rule that matches is stricter.", v.rule.ref, whose, v.action)
	}
	if v.chain == 0 && v.rule == nil && call.asksModel() {
		return "No rule with an action names both the tool and the caller: " + modelsForAgents + "."
	}
	f := s.fallbacks.find(server)
	if d.Effect == Allow && !call.OfTool() {
		return fmt.Sprintf("No rule with an action is about the notification %s and matches %s; those of the protocol pass where no rule denies them, as far as what they are about does.", strconv.Quote(call.Method), whose)
	}
	if v.unopened != nil {
		return fmt.Sprintf("Rule %s asks people about URIs as they are written, and this one could merely be taken for one of them; no rule allows it to %s.", v.unopened.ref, whose)
	}
	if !call.OfTool() {
		return fmt.Sprintf("No rule with an action is about the method %s and matches %s, and defaults are about tools/call alone.", strconv.Quote(call.Method), whose)
	}
	if f.value == DefaultNone {
		return fmt.Sprintf("No rule with an action matches %s, and no document for the server has a default.", whose)
	}
	return fmt.Sprintf("No rule with an action matches %s; the strictest default of the documents for the server is %s, in %s.",
		whose, f.value, f.document)
}
