package advice

import (
	"cmp"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An Entry describes an attack in the catalog.
type Entry struct {
	// ID identifies the attack, for example "AT01". The ID of an attack never changes and is never reused for another
	// attack.
	ID string
	// Name is the displayed name, for example "Runaway loop".
	Name string
	// Happens describes the attack in full sentences.
	Happens string
	// Stopped describes in full sentences how the attack is stopped.
	Stopped string
	// Rule is a YAML document with the rule that stops the attack. It can be used together with other documents. Its names
	// of servers, tools, agents and arguments are examples. Rule is empty if the catalog already stops the attack by
	// refusing calls to tools whose definitions were not accepted.
	Rule string
	// References contains the names of the OWASP list entries that correspond to the attack.
	References []string

	targets []target
}

// Entries returns the attack catalog, sorted by ID. The caller may modify the result.
func Entries() []Entry {
	out := slices.Concat(callAttacks, dataFlowAttacks, definitionAttacks, peopleAttacks)
	for i := range out {
		out[i].References = slices.Clone(out[i].References)
	}
	return out
}

// Attacks returns the attack catalog as protocol buffer messages, sorted by ID.
func Attacks() []*policyv1.Attack { return toMessages(Entries()) }

// attacksOn returns the attacks that are most relevant for a tool with the classification c. They are sorted by
// descending relevance, and then by ID.
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
