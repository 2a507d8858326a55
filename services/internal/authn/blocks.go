package authn

import (
	"errors"
	"slices"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// ErrBlocked means that an operator has blocked the caller, or the person for whom the caller works.
var ErrBlocked = errors.New("an operator has blocked this caller, or the person for whom it works (`sluice identity blocks` lists the blocks)")

// blocks contains the blocked callers. It is immutable. The zero value blocks no caller.
type blocks struct {
	// subjects and clients contain the blocked subjects and OAuth clients of each tenant.
	subjects, clients map[tenantName]bool
	// from contains the blocks as they were received.
	from []*identityv1.BlockedCaller
}

// tenantName is the name of a subject or an OAuth client in a tenant.
type tenantName struct{ tenant, name string }

func newBlocks(from []*identityv1.BlockedCaller) blocks {
	if len(from) == 0 {
		return blocks{}
	}
	b := blocks{subjects: make(map[tenantName]bool), clients: make(map[tenantName]bool), from: from}
	for _, one := range from {
		if one.GetSubject() != "" {
			b.subjects[tenantName{one.GetTenant(), one.GetSubject()}] = true
		}
		if one.GetClient() != "" {
			b.clients[tenantName{one.GetTenant(), one.GetClient()}] = true
		}
	}
	return b
}

// blocks reports whether a principal is blocked because of its subject, owner, actor or client, or because of a
// principal on whose behalf it acts.
func (b *blocks) blocks(p *identityv1.Principal) bool {
	if len(b.from) == 0 {
		return false
	}
	isBlocked := func(name string) bool { return name != "" && b.subjects[tenantName{p.GetTenant(), name}] }
	return isBlocked(p.GetSubject()) || isBlocked(p.GetOwner()) || isBlocked(p.GetActor()) || p.GetClient() != "" && b.clients[tenantName{p.GetTenant(), p.GetClient()}] ||
		slices.ContainsFunc(p.GetChain(), b.blocks)
}

// IsBlocked reports whether an operator has blocked a principal, according to the newest set of tokens.
func (t *Tokens) IsBlocked(p *identityv1.Principal) bool {
	set := t.set.Load()
	return set != nil && set.blocks.blocks(p)
}
