package authn

import (
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
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
