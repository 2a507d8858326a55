package advice

import (
	"cmp"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An Entry describes an attack in the catalog.
type Entry struct {
	// ID identifies the attack: "AT01" and so on. The ID of an attack never changes, and is never used for a different
	// attack.
	ID string
	// Name is the name that people see, for example "Runaway loop".
	Name string
	// Happens describes the attack in full sentences.
	Happens string
	// Stopped says in full sentences what stops the attack.
	Stopped string
	// Rule is a YAML document with the rule that stops the attack. It can be used together with other documents. The
	// names of servers, tools, agents and arguments in it are examples. Rule is empty if the attack fails without a
	// rule, because the catalog refuses calls to tools whose definitions were not accepted.
	Rule string
	// References contains the entries of the OWASP lists that correspond to the attack, with their names.
	References []string

	targets []target
}

// Entries returns the attack catalog, sorted by ID. The caller may change the result.
func Entries() []Entry {
	out := slices.Concat(callAttacks, dataFlowAttacks, definitionAttacks, peopleAttacks)
	for i := range out {
		out[i].References = slices.Clone(out[i].References)
	}
	return out
}

// Attacks returns the attack catalog as protocol buffer messages, sorted by ID.
func Attacks() []*policyv1.Attack { return toMessages(Entries()) }

// attacksOn returns the attacks that are most relevant for a tool with the classification c, sorted by descending
// relevance and then by ID.
func attacksOn(c *policyv1.Classification) []*policyv1.Attack {
	found := slices.DeleteFunc(Entries(), func(e Entry) bool { return e.relevanceFor(c) == 0 })
	slices.SortStableFunc(found, func(a, b Entry) int { return cmp.Compare(b.relevanceFor(c), a.relevanceFor(c)) })
	return toMessages(found[:min(len(found), maxAttacks)])
}

func toMessages(entries []Entry) []*policyv1.Attack {
	out := make([]*policyv1.Attack, 0, len(entries))
	for _, e := range entries {
		out = append(out, &policyv1.Attack{Id: e.ID, Name: e.Name, Description: e.Happens + " " + e.Stopped, References: e.References})
	}
	return out
}
