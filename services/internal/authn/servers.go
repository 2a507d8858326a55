package authn

import (
	"slices"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// MayUse reports whether the credentials of a principal, and of the principals in its chain, give access to a server.
// The empty name stands for the URL that gives access to all servers. A credential that lists servers gives access only
// to the listed servers.
func MayUse(p *identityv1.Principal, server string) bool {
	restricts := func(p *identityv1.Principal) bool {
		return len(p.GetServers()) > 0 && !slices.Contains(p.GetServers(), server)
	}
	return !restricts(p) && !slices.ContainsFunc(p.GetChain(), restricts)
}
