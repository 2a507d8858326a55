// Package principal contains the keys that identify principals when quotas are counted.
package principal

import (
	"cmp"
	"slices"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Catalogue is the subject that the gateway uses when it lists the tools of servers on its own behalf. The subject of a
// token never contains a colon.
const Catalogue = "system:catalogue"

// Agent is the prefix of the subjects of the mesh's own agents.
const Agent = "agent:"

// Delegate is the prefix of the subjects of agents that act for a person according to the claim `act` of a JWT
// (RFC 8693, section 4.1).
const Delegate = "act:"

// reserved contains the prefixes of subjects that only the mesh uses.
var reserved = []string{Agent, Delegate, "system:"}

// IsReserved reports whether a subject begins with a prefix that only the mesh uses. No credential may name such a
// subject, because the holder could imitate another caller.
func IsReserved(subject string) bool {
	return slices.ContainsFunc(reserved, func(prefix string) bool { return strings.HasPrefix(subject, prefix) })
}

// Key identifies a principal or a person, independent of token, session and run. The zero value identifies no
// principal.
type Key struct{ Tenant, Subject string }

// Of returns the key of a principal.
func Of(p *identityv1.Principal) Key { return Key{p.GetTenant(), p.GetSubject()} }

// Root returns the key of the person behind the last principal in p's delegation chain. Caches and queues treat that
// person's agents, and the agents that these agents have created, as one caller.
func Root(p *identityv1.Principal) Key {
	if chain := p.GetChain(); len(chain) > 0 {
		return Person(chain[len(chain)-1])
	}
	return Person(p)
}

// Person returns the key of the person for whom a principal works. It is the key of the principal's owner, or of the
// principal itself if it has no owner.
func Person(p *identityv1.Principal) Key {
	return Key{p.GetTenant(), cmp.Or(p.GetOwner(), p.GetSubject())}
}

// ConnectionsOf returns the key of the person whose accounts at MCP servers a caller uses. It returns the zero key if
// there is no such person. The owner of a caller is not enough, because any operator can create a token with any owner.
//
// An agent of the mesh has the person of its creator. If the chain of its creators names another person, ConnectionsOf
// returns the zero key.
func ConnectionsOf(p *identityv1.Principal) Key {
	person, chain := p.GetPerson(), p.GetChain()
	for len(chain) > 0 && strings.HasPrefix(p.GetSubject(), Agent) {
		p, chain = chain[0], chain[1:]
		if p.GetPerson() != person {
			return Key{}
		}
	}
	if person == "" {
		return Key{}
	}
	return Key{p.GetTenant(), person}
}

// ActsFor returns the key of the person for whom p acts at MCP servers: p itself if p is a person, and otherwise
// [ConnectionsOf]. An agent that p creates uses the accounts of this person.
func ActsFor(p *identityv1.Principal) Key {
	people := []authv1.TokenRole{authv1.TokenRole_TOKEN_ROLE_OPERATOR, authv1.TokenRole_TOKEN_ROLE_APPROVER, authv1.TokenRole_TOKEN_ROLE_VIEWER}
	if slices.Contains(people, p.GetRole()) {
		return Of(p)
	}
	return ConnectionsOf(p)
}

// HasPerson reports whether a caller or a principal in its delegation chain has a person.
func HasPerson(p *identityv1.Principal) bool {
	return p.GetPerson() != "" || slices.ContainsFunc(p.GetChain(), func(behind *identityv1.Principal) bool { return behind.GetPerson() != "" })
}
