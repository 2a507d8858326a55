package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// People are those whom tokens name: who may decide, and whose calls would wait.
// Where it is not known who they are there are no People.
type People struct {
	// Deciders are the operators and approvers, one for each token.
	Deciders []Principal
	// Callers are the agents, one for each token.
	Callers []Owned
	// OwnersMay says that owners may decide on the calls of their agents.
	OwnersMay bool
}

// Owned is an agent and the subject of the person whom it works for, who may be
// nobody.
type Owned struct {
	Principal

	Owner string
}

// Faults returns which rules ask for more people than there are, and as warnings
// whose calls nobody could approve though others' can be. Each rule is looked at by
// itself; the document has no faults else. Suggestions name people.
func (p *People) Faults(d *Document) []Fault {
	var faults []Fault
	for i := range d.Rules {
		if d.Rules[i].Action != ActionRequireApproval {
			continue
		}
		if f, found := p.faultOf(compileRule(d, &d.Rules[i], nil)); found {
			f.Rule = i
			faults = append(faults, f)
		}
	}
	return faults
}

func (p *People) faultOf(r *rule) (Fault, bool) {
	quorum := max(r.Quorum, 1)
	able := p.able(r)
	var best []string
	for _, tenant := range slices.Sorted(maps.Keys(able)) {
		if len(able[tenant]) > len(best) {
			best = able[tenant]
		}
	}
	switch {
	case r.SelfConfirm:
		return Fault{}, false
	case len(best) < quorum:
		return Fault{
			Message:    fmt.Sprintf("can never be approved: it asks for %s, and known %s", wanted(r, quorum), counted(len(best))),
			Suggestion: named(best) + advice(r),
		}, true
	default:
		return p.stuck(r, quorum, able)
	}
}

// able are the subjects that the rule lets decide, by tenant, each once and sorted.
func (p *People) able(r *rule) map[string][]string {
	out := make(map[string][]string)
	for i := range p.Deciders {
		who := &p.Deciders[i]
		in := len(r.Approvers) == 0 || slices.ContainsFunc(who.Groups, func(g string) bool { return slices.Contains(r.Approvers, g) })
		if in && r.tenants.match(who.Tenant) {
			out[who.Tenant] = append(out[who.Tenant], who.Name)
		}
	}
	for tenant, names := range out {
		slices.Sort(names)
		out[tenant] = slices.Compact(names)
	}
	return out
}

// stuck warns of callers whose calls too few may approve.
func (p *People) stuck(r *rule, quorum int, able map[string][]string) (Fault, bool) {
	var names []string
	for i := range p.Callers {
		c := &p.Callers[i]
		if p.left(c, able[c.Tenant]) < quorum && r.concerns(&c.Principal) && !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 {
		return Fault{}, false
	}
	return Fault{
		Warning: true,
		Message: fmt.Sprintf("calls of %s can't be approved: it asks for %s of their tenant, who are neither the caller nor its owner",
			some(names), wanted(r, quorum)),
		Suggestion: advice(r),
	}, true
}

// left counts those who may decide on the calls of a caller.
func (p *People) left(c *Owned, able []string) int {
	n := len(able)
	if _, found := slices.BinarySearch(able, c.Name); found {
		n--
	}
	if _, found := slices.BinarySearch(able, c.Owner); found && !p.OwnersMay && c.Owner != c.Name {
		n--
	}
	return n
}

// wanted are the people that a rule asks for.
func wanted(r *rule, quorum int) string {
	text := "1 operator or approver"
	if quorum > 1 {
		text = fmt.Sprintf("%d operators or approvers", quorum)
	}
	if len(r.Approvers) > 0 {
		text += " of " + strings.Join(r.Approvers, ", ")
	}
	return text
}

func counted(n int) string {
	switch n {
	case 0:
		return "is nobody"
	case 1:
		return "is 1"
	default:
		return fmt.Sprintf("are %d", n)
	}
}

// named says who is known, which is not for everybody to read.
func named(names []string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "that is " + names[0] + ": "
	default:
		return "those are " + some(names) + ": "
	}
}

// advice says how there come to be more people.
func advice(r *rule) string {
	text := "give more people a token with role approver or operator"
	if len(r.Approvers) > 0 {
		text += ", and such a group"
	}
	return text
}

// some are the first names of a list that may be long.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
