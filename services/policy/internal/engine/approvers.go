package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Approvers contains the people who may approve calls, and the agents whose calls may need an approval. A nil
// *Approvers means that these people and agents are not known.
type Approvers struct {
	// Deciders contains the holders of operator and approver tokens, one entry for each token.
	Deciders []Principal
	// Callers contains the holders of agent tokens, one entry for each token.
	Callers []OwnedAgent
	// OwnersMayApprove is true if the owner of an agent may approve or refuse the agent's calls.
	OwnersMayApprove bool
	// OthersMayDecide is true if people who are not in Deciders may decide after they have signed in at an issuer. The
	// mesh does not know these people before they sign in.
	OthersMayDecide bool
}

// OwnedAgent is an agent with its owner. Owner is the subject of the person for whom the agent works, or empty.
type OwnedAgent struct {
	Principal

	Owner string
}

// Check returns an error for each rule that requires more approvers than exist. It returns a warning for each rule
// whose approvers can't approve the calls of some agents. It also returns a warning for each rule that makes approval
// impossible because approve_with requires a sign-in. Each rule is checked on its own. The document must have no other
// errors. The suggestions contain names of people. If OthersMayDecide is true, Check returns nil, because the approvers
// can't be counted.
func (p *Approvers) Check(d *Document) []ParseError {
	if p.OthersMayDecide {
		return nil
	}
	var faults []ParseError
	for i := range d.Rules {
		if d.Rules[i].Action != ActionRequireApproval {
			continue
		}
		if f, found := p.checkRule(compileRule(d, &d.Rules[i], nil)); found {
			f.Rule = i
			faults = append(faults, f)
		}
	}
	return faults
}

func (p *Approvers) checkRule(r *rule) (ParseError, bool) {
	quorum := max(r.Quorum, 1)
	able := p.eligible(r)
	var best []string
	for _, tenant := range slices.Sorted(maps.Keys(able)) {
		if len(able[tenant]) > len(best) {
			best = able[tenant]
		}
	}
	switch {
	case r.SelfConfirm:
		return ParseError{}, false
	case len(best) < quorum:
		return ParseError{
			Message:    fmt.Sprintf("can never be approved: it asks for %s, and there %s", requiredText(r, quorum), countText(len(best))),
			Suggestion: namesText(best) + moreApproversText(r),
		}, true
	case !r.ApproveWith.isZero(): // the people have tokens from the configuration, so they have not signed in
		return ParseError{
			Warning:    true,
			Message:    "can never be approved: approve_with asks for people who have signed in, and people can't sign in as operator or approver",
			Suggestion: "set sign_in and people of an issuer (auth.issuers), or remove approve_with",
		}, true
	default:
		return p.checkCallers(r, quorum, able)
	}
}

// eligible returns the people who may approve the calls that a rule matches. The result contains their sorted names, by
// tenant.
func (p *Approvers) eligible(r *rule) map[string][]string {
	out := make(map[string][]string)
	for i := range p.Deciders {
		decider := &p.Deciders[i]
		in := len(r.Approvers) == 0 || slices.ContainsFunc(decider.Groups, func(g string) bool { return slices.Contains(r.Approvers, g) })
		if in && r.tenants.match(decider.Tenant) {
			out[decider.Tenant] = append(out[decider.Tenant], decider.Name)
		}
	}
	for tenant, names := range out {
		slices.Sort(names)
		out[tenant] = slices.Compact(names)
	}
	return out
}

// checkCallers returns a warning if there are not enough approvers for some callers. able contains the sorted names of
// the people who may approve, by tenant.
func (p *Approvers) checkCallers(r *rule, quorum int, able map[string][]string) (ParseError, bool) {
	var names []string
	for i := range p.Callers {
		c := &p.Callers[i]
		if p.countFor(c, able[c.Tenant]) < quorum && r.matchesPrincipal(&c.Principal) && !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return ParseError{}, false
	}
	return ParseError{
		Warning: true,
		Message: fmt.Sprintf("calls of %s can't be approved: it asks for %s of their tenant, who are neither the caller nor its owner",
			firstNames(names), requiredText(r, quorum)),
		Suggestion: moreApproversText(r),
	}, true
}

// countFor returns how many of the given people may approve a caller's calls. Callers may not approve their own calls.
func (p *Approvers) countFor(c *OwnedAgent, able []string) int {
	n := len(able)
	if _, found := slices.BinarySearch(able, c.Name); found {
		n--
	}
	if _, found := slices.BinarySearch(able, c.Owner); found && !p.OwnersMayApprove && c.Owner != c.Name {
		n--
	}
	return n
}

// requiredText describes for a message which approvers a rule requires.
func requiredText(r *rule, quorum int) string {
	text := "1 operator or approver"
	if quorum > 1 {
		text = fmt.Sprintf("%d operators or approvers", quorum)
	}
	if len(r.Approvers) > 0 {
		text += " of " + strings.Join(r.Approvers, ", ")
	}
	return text
}

func countText(n int) string {
	switch n {
	case 0:
		return "are 0"
	case 1:
		return "is 1"
	default:
		return fmt.Sprintf("are %d", n)
	}
}

func namesText(names []string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "that is " + names[0] + ": "
	default:
		return "those are " + firstNames(names) + ": "
	}
}

// moreApproversText returns a suggestion for getting more approvers for a rule.
func moreApproversText(r *rule) string {
	text := "give more people a token with role approver or operator"
	if len(r.Approvers) > 0 {
		text += ", in one of these groups"
	}
	return text
}

// firstNames lists the first five names and the number of further names.
func firstNames(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
