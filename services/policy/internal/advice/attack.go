package advice

import (
	"cmp"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An Entry is an attack of the catalog.
type Entry struct {
	// ID is stable: "AT01" and so on. An id is never reused for another attack.
	ID string
	// Name is a name for people, for example "Runaway loop".
	Name string
	// Happens describes the attack, in sentences for people.
	Happens string
	// Stopped describes the defence that stops the attack, in sentences for people.
	Stopped string
	// Rule is the rule that stops the attack, as a whole YAML document to add to other documents. Names of servers,
	// tools, agents and arguments in it are examples. Rule is empty if no rule can stop the attack; then the catalog
	// does, because a tool can't be called with a definition that was not accepted.
	Rule string
	// References are the entries of public lists that the attack corresponds to, with OWASP's names.
	References []string

	// about describes the tools that the attack exploits.
	about []access
}

// Entries returns the whole attack catalog, sorted by id. The caller may change the result.
func Entries() []Entry {
	out := slices.Concat(deeds, flows, definitions, people)
	for i := range out {
		out[i].References = slices.Clone(out[i].References)
	}
	return out
}

// Attacks returns the whole attack catalog in the form of pages, sorted by id.
func Attacks() []*policyv1.Attack { return shown(Entries()) }

// exploiting returns the attacks that gain most from a tool with the classification c, in descending order and then by
// id.
func exploiting(c *policyv1.Classification) []*policyv1.Attack {
	found := slices.DeleteFunc(Entries(), func(e Entry) bool { return e.from(c) == 0 })
	slices.SortStableFunc(found, func(a, b Entry) int { return cmp.Compare(b.from(c), a.from(c)) })
	return shown(found[:min(len(found), mostAttacks)])
}

func shown(entries []Entry) []*policyv1.Attack {
	out := make([]*policyv1.Attack, 0, len(entries))
	for _, e := range entries {
		out = append(out, &policyv1.Attack{Id: e.ID, Name: e.Name, Description: e.Happens + " " + e.Stopped, References: e.References})
	}
	return out
}
