package authn

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// PrincipalsOf returns the principals of a subject's valid tokens, one for each token. The results are shared and must
// not be modified. If the set of tokens is stale, PrincipalsOf returns [ErrTokensStale].
func (t *Tokens) PrincipalsOf(tenant, subject string) ([]*identityv1.Principal, error) {
	set, now := t.set.Load(), time.Now()
	if set == nil || t.isStale(now) {
		return nil, ErrTokensStale
	}
	var out []*identityv1.Principal
	for _, one := range set.tokens {
		if p := one.bearer.Principal; p != nil && one.ended == nil && !one.hasExpired(now) && p.GetTenant() == tenant && p.GetSubject() == subject {
			out = append(out, p)
		}
	}
	return out, nil
}

// WithCurrentPerson returns p without its person if p is an agent of the mesh, and the token with which it was created
// no longer gives the right to use this person's connections to servers. Otherwise it returns p. It does not modify p.
//
// An agent keeps its person if a person or a JWT has created it. A session or a JWT ends soon, but the person has created
// the agent to work on.
func (t *Tokens) WithCurrentPerson(p *identityv1.Principal) *identityv1.Principal {
	isAgent := func(p *identityv1.Principal) bool { return strings.HasPrefix(p.GetSubject(), principal.Agent) }
	if p.GetPerson() == "" || !isAgent(p) {
		return p
	}
	first := slices.IndexFunc(p.GetChain(), func(behind *identityv1.Principal) bool { return !isAgent(behind) })
	if first < 0 || p.GetChain()[first].GetIssuer() != "" || t.givesPerson(p.GetChain()[first]) {
		return p
	}
	out := proto.CloneOf(p)
	for _, one := range append([]*identityv1.Principal{out}, out.GetChain()...) {
		one.Person = ""
	}
	return out
}

// givesPerson reports whether the token of a principal is valid and gives it its person.
func (t *Tokens) givesPerson(p *identityv1.Principal) bool {
	set, now := t.set.Load(), time.Now()
	return set != nil && slices.ContainsFunc(set.tokens, func(one *token) bool {
		is := one.bearer.Principal
		return is != nil && one.name == p.GetTokenId() && one.ended == nil && !one.hasExpired(now) &&
			is.GetTenant() == p.GetTenant() && is.GetSubject() == p.GetSubject() && is.GetPerson() == p.GetPerson()
	})
}
