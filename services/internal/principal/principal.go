// Package principal names principals, as shares are counted for them.
package principal

import (
	"cmp"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Catalogue is the subject for whom the gateway lists servers by itself. No subject of a
// token has a colon.
const Catalogue = "system:catalogue"

// Agent begins the subjects of agents of the mesh.
const Agent = "agent:"

// Key is a principal, or a person behind it, whatever token, session or run it uses. The
// zero value is nobody.
type Key struct{ Tenant, Subject string }

// Of is the key of a principal.
func Of(p *identityv1.Principal) Key { return Key{p.GetTenant(), p.GetSubject()} }

// Root returns the person behind the last principal of the chain: the one whose agents, and their agents, a
// cache or a queue tells apart from those of others.
func Root(p *identityv1.Principal) Key {
	if chain := p.GetChain(); len(chain) > 0 {
		return Person(chain[len(chain)-1])
	}
	return Person(p)
}

// Person is for whom a principal works: its owner, or itself where nobody is named.
func Person(p *identityv1.Principal) Key {
	return Key{p.GetTenant(), cmp.Or(p.GetOwner(), p.GetSubject())}
}
