package advice

import (
	"cmp"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An Entry is an attack of the catalogue.
type Entry struct {
	// ID is stable: "AT01" and so on. One that was given is never given to another attack.
	ID string
	// Name is for people, for example "Runaway loop".
	Name string
	// Happens says what happens, in sentences for people.
	Happens string
	// Stopped says what stops it, in sentences for people.
	Stopped string
	// Rule is the rule that does, as the YAML of a whole document. It is made to be added
	// to others, and names of servers, tools, agents and arguments in it are examples.
	// Empty where no rule can: then it is the catalogue, which lets nobody call a tool
	// with a definition that was not accepted.
	Rule string
	// References are the entries of public lists that it maps to, as OWASP names them.
	References []string

	// about are the tools that it exploits.
	about []access
}

// Entries is the whole attack catalogue, sorted by id. It is the caller's own.
func Entries() []Entry {
	out := slices.Concat(deeds, flows, definitions, people)
	for i := range out {
		out[i].References = slices.Clone(out[i].References)
	}
	return out
}

// Attacks is the whole attack catalogue as pages show it, sorted by id.
func Attacks() []*policyv1.Attack { return shown(Entries()) }

// exploiting are the attacks that gain most from a tool that is held to be c, these first.
// Where several gain the same their ids decide.
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
