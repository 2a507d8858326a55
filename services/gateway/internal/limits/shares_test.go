package limits_test

import (
	"testing"
	"testing/synctest"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
)

// Case X3. A principal cannot exceed its quota, and all principals together cannot exceed the budget.
func TestGrow_QuotasEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		first, small := r.Open(ana), r.Open(ana)
		if !canGrow(t, first, 4*mib) || canGrow(t, r.Open(ana), mib) || r.Open(ana).Add(mib) {
			t.Error("a quota can't be used up, or has no limit")
		}
		if !canGrow(t, small, limits.UncountedBytes) || !small.Add(limits.UncountedBytes) {
			t.Error("a small answer waits for a large one")
		}
		if !canGrow(t, r.Open(ben), 4*mib) {
			t.Error("another principal gets no memory")
		}
		if canGrow(t, r.Open(cat), mib) || r.Open(cat).Add(mib) {
			t.Error("the budget is exceeded")
		}
		first.Settle(mib)
		if !canGrow(t, r.Open(cat), 3*mib) || canGrow(t, r.Open(cat), mib) {
			t.Error("freed memory is not available, or more than that is")
		}
	})
}

// Case X3. All principals of one person share a quota. The principal of the person itself also counts against this
// quota.
func TestGrow_PersonsHaveAQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudget(t)
		one, two := ownerOfPerson(newOwner("agent-1"), "ana"), ownerOfPerson(newOwner("agent-2"), "ana")
		if !r.Open(one).Add(4*mib) || !canGrow(t, r.Open(two), mib) || !r.Open(ana).Add(mib) {
			t.Fatal("the budget is too small")
		}
		if r.Open(two).Add(mib) || canGrow(t, r.Open(ana), mib) || canGrow(t, r.Open(ownerOfPerson(newOwner("agent-3"), "ana")), mib) {
			t.Error("the principals of one person exceed its quota")
		}
		if !r.Open(ben).Add(2 * mib) {
			t.Error("another principal gets no memory")
		}
		both := ownerFor(&identityv1.Principal{Tenant: "acme", Subject: "agent-4", Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "agent-5", Owner: "ana"}}})
		if r.Open(both).Add(mib) {
			t.Error("a holder of two persons exceeds the quota of one")
		}
		if r.Open(ana).Add(1<<20) || !r.Open(ownerFor(&identityv1.Principal{Tenant: "other", Subject: "ana", Owner: "dan"})).Add(limits.UncountedBytes) {
			t.Error("the budget is exceeded, or a small holding waits")
		}
	})
}

// Case X3. A server has a quota for incomplete answers. Complete answers count only against their callers' quotas.
func TestGrow_ServersHaveAQuota(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 8 * mib, Server: 4 * mib, All: 8 * mib})
		slow := r.Open(ownerAtServer(ana, "slow"))
		if !canGrow(t, slow, 3*mib) || canGrow(t, r.Open(ownerAtServer(ben, "slow")), 2*mib) {
			t.Error("a server's quota has no limit, or can't be used")
		}
		if h := r.Open(ownerAtServer(ben, "quick")); !canGrow(t, h, 4*mib) {
			t.Error("another server's answers wait")
		} else {
			h.Close()
		}
		slow.Settle(3 * mib)
		if !canGrow(t, r.Open(ownerAtServer(ben, "slow")), 4*mib) {
			t.Error("a complete answer still counts for its server")
		}
	})
}

// Answers to an agent count against the quota of the principal that has created the agent. This also applies if that
// principal is an agent that another principal has created.
func TestAdd_AgentsShareTheQuotaOfTheirMaker(t *testing.T) {
	t.Parallel()
	r := newBudgetWith(t, limits.Quotas{Principal: 4 * mib, Person: 8 * mib, Server: 16 * mib, All: 16 * mib})
	bot := &identityv1.Principal{Tenant: "acme", Subject: "bot", Owner: "olga"}
	child := &identityv1.Principal{Tenant: "acme", Subject: "agent:acme/1", Owner: "olga", Chain: []*identityv1.Principal{bot}}
	grandchild := &identityv1.Principal{Tenant: "acme", Subject: "agent:acme/2", Owner: "olga", Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "agent:acme/1"}, bot}}
	for _, p := range []*identityv1.Principal{child, grandchild} {
		if !r.Open(ownerFor(p)).Add(2 * mib) {
			t.Fatalf("%s gets no memory", p.GetSubject())
		}
	}
	for _, p := range []*identityv1.Principal{bot, child, grandchild} {
		if r.Open(ownerFor(p)).Add(mib) {
			t.Errorf("%s exceeds its maker's quota", p.GetSubject())
		}
	}
	for _, p := range []*identityv1.Principal{{Tenant: "acme", Subject: "other", Owner: "olga"}, {Tenant: "globex", Subject: "bot"}} {
		if !r.Open(ownerFor(p)).Add(4 * mib) {
			t.Errorf("%s of %s gets no memory", p.GetSubject(), p.GetTenant())
		}
	}
}
