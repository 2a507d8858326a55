package decisioncache

import (
	"slices"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// serverScopes contains the OAuth scopes that policy rules need.
type serverScopes struct {
	byServer map[string][]string
	all      []string // the scopes for all servers, sorted
}

func newServerScopes(servers []*policyv1.ServerScopes) serverScopes {
	out := serverScopes{byServer: make(map[string][]string, len(servers))}
	for _, one := range servers {
		out.byServer[one.GetServer()] = one.GetScopes()
		out.all = append(out.all, one.GetScopes()...)
	}
	slices.Sort(out.all)
	out.all = slices.Compact(out.all)
	return out
}

// NeededScopes returns, in sorted order, the OAuth scopes that the rules of the active policy need for calls to a
// server. If the server is empty, it returns the scopes for all servers. It returns nil if the policy service has sent
// no message for more than 2 s. Callers must not modify the result.
func (d *Cache) NeededScopes(server string) []string {
	e := d.epoch.Load()
	switch {
	case e == nil || d.received.Load().isSilent():
		return nil
	case server == "":
		return e.scopes.all
	default:
		return e.scopes.byServer[server]
	}
}
