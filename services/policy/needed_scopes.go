package policy

import (
	"maps"
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// setScopes contains the scopes that the rules of a set require.
type setScopes struct {
	number  uint64
	servers []*policyv1.ServerScopes
}

// neededScopes returns the scopes that the rules of a set require for each configured server. It omits servers for
// which no rule requires a scope. The result is computed once for each set, because gateways request it several times
// per second.
func (s *Service) neededScopes(set *activeSet) []*policyv1.ServerScopes {
	if known := s.scopes.Load(); known != nil && known.number == set.number {
		return known.servers
	}
	next := &setScopes{number: set.number}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Servers)) {
		if scopes := set.NeededScopes(name); len(scopes) > 0 {
			next.servers = append(next.servers, &policyv1.ServerScopes{Server: name, Scopes: scopes})
		}
	}
	s.scopes.Store(next)
	return next.servers
}
