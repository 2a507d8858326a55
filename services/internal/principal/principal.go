// Package principal contains the keys of principals by which quotas are counted.
package principal

import (
	"cmp"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Catalogue is the subject for which the gateway itself lists servers. No subject of a token contains a colon.
const Catalogue = "system:catalogue"

// Agent is the prefix of the subjects of agents of the mesh.
const Agent = "agent:"

// Key identifies a principal, or a person that it works for, independent of token, session and run. The zero value
// identifies no principal.
type Key struct{ Tenant, Subject string }

// Of returns the key of a principal.
func Of(p *identityv1.Principal) Key { return Key{p.GetTenant(), p.GetSubject()} }

// Root returns the person behind the last principal of the chain. Caches and queues treat that person's agents, and
// their agents, as one.
func Root(p *identityv1.Principal) Key {
	if chain := p.GetChain(); len(chain) > 0 {
		return Person(chain[len(chain)-1])
	}
	return Person(p)
}

// Person returns the key of the person that a principal works for: its owner, or itself if it has no owner.
func Person(p *identityv1.Principal) Key {
	return Key{p.GetTenant(), cmp.Or(p.GetOwner(), p.GetSubject())}
}
