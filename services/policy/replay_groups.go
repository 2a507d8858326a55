package policy

import (
	"slices"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// currentGroups contains the current groups of the holders of valid tokens. A replay uses these groups because the
// journal does not record groups.
type currentGroups struct {
	byName   map[string]*identityv1.Token
	byHolder map[holder][]string
	// differing contains the holders that have several tokens with different groups. Their groups are ambiguous.
	differing map[holder]bool
}

type holder struct{ tenant, subject, agent string }

func newCurrentGroups(tokens []*identityv1.TokenRecord) *currentGroups {
	out := &currentGroups{byName: make(map[string]*identityv1.Token), byHolder: make(map[holder][]string), differing: make(map[holder]bool)}
	for _, r := range tokens {
		t := r.GetToken()
		out.byName[t.GetName()] = t
		of := holder{t.GetTenant(), t.GetSubject(), t.GetAgent()}
		groups := slices.Sorted(slices.Values(t.GetGroups()))
		if known, ok := out.byHolder[of]; ok && !slices.Equal(known, groups) {
			out.differing[of] = true
		}
		out.byHolder[of] = groups
	}
	return out
}

// set sets the groups of a recorded caller and of the principals in its delegation chain. It reports whether the groups
// of all these principals are known.
func (g *currentGroups) set(s *engine.Subject, recorded *identityv1.Principal) bool {
	known := g.setOne(&s.Caller, recorded)
	for i, p := range recorded.GetChain() {
		known = g.setOne(&s.Chain[i], p) && known
	}
	return known
}

func (g *currentGroups) setOne(p *engine.Principal, recorded *identityv1.Principal) bool {
	if recorded.GetIssuer() != "" { // the journal does not record the groups and scopes of a JWT
		return false
	}
	of := holder{p.Tenant, p.Name, p.Agent}
	if t := g.byName[recorded.GetTokenId()]; t != nil && of == (holder{t.GetTenant(), t.GetSubject(), t.GetAgent()}) {
		p.Groups = t.GetGroups()
		return true
	}
	groups, ok := g.byHolder[of]
	p.Groups = groups
	if g.differing[of] {
		p.Groups, ok = nil, false
	}
	return ok
}
