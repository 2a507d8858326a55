package room_test

import (
	"testing"
	"testing/synctest"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// X3: a principal has its share, and all have the room.
func TestX3SharesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		first, small := r.Open(ana), r.Open(ana)
		if !grown(t, first, 4*mib) || grown(t, r.Open(ana), mib) || r.Open(ana).Add(mib) {
			t.Error("a share is not its principal's, or has no end")
		}
		if !grown(t, small, room.Free) || !small.Add(room.Free) {
			t.Error("a small answer waits for a large one")
		}
		if !grown(t, r.Open(ben), 4*mib) {
			t.Error("somebody else has no room")
		}
		if grown(t, r.Open(cat), mib) || r.Open(cat).Add(mib) {
			t.Error("all have more than there is")
		}
		first.Keep(mib)
		if !grown(t, r.Open(cat), 3*mib) || grown(t, r.Open(cat), mib) {
			t.Error("what was given back is not there, or more is")
		}
	})
}

// X3: those that work for one person have a share together, and the person with them.
func TestX3PersonsHaveAShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(t)
		one, two := works(holder("agent-1"), "ana"), works(holder("agent-2"), "ana")
		if !r.Open(one).Add(4*mib) || !grown(t, r.Open(two), mib) || !r.Open(ana).Add(mib) {
			t.Fatal("there is no room")
		}
		if r.Open(two).Add(mib) || grown(t, r.Open(ana), mib) || grown(t, r.Open(works(holder("agent-3"), "ana")), mib) {
			t.Error("those of one person have more than its share")
		}
		if !r.Open(ben).Add(2 * mib) {
			t.Error("somebody else has no room")
		}
		both := of(&identityv1.Principal{Tenant: "acme", Subject: "agent-4", Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "agent-5", Owner: "ana"}}})
		if r.Open(both).Add(mib) {
			t.Error("who works for two has the room of one")
		}
		if r.Open(ana).Add(1<<20) || !r.Open(of(&identityv1.Principal{Tenant: "other", Subject: "ana", Owner: "dan"})).Add(room.Free) {
			t.Error("all have more than there is, or a small one waits")
		}
	})
}

// X3: a server has its share of the room until its answers are whole. Then they are their
// readers'.
func TestX3ServersHaveAShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := limited(t, room.Limits{Principal: 4 * mib, Person: 8 * mib, Server: 4 * mib, All: 8 * mib})
		slow := r.Open(from(ana, "slow"))
		if !grown(t, slow, 3*mib) || grown(t, r.Open(from(ben, "slow")), 2*mib) {
			t.Error("a server's share has no end, or none")
		}
		if h := r.Open(from(ben, "quick")); !grown(t, h, 4*mib) {
			t.Error("another server's answers wait")
		} else {
			h.Close()
		}
		slow.Keep(3 * mib)
		if !grown(t, r.Open(from(ben, "slow")), 4*mib) {
			t.Error("what waits for its reader is still its server's")
		}
	})
}

// What answers to an agent take counts against the principal that made it, at any depth.
func TestAdd_AgentsHaveTheRoomOfTheirMaker(t *testing.T) {
	t.Parallel()
	r := limited(t, room.Limits{Principal: 4 * mib, Person: 8 * mib, Server: 16 * mib, All: 16 * mib})
	bot := &identityv1.Principal{Tenant: "acme", Subject: "bot", Owner: "olga"}
	child := &identityv1.Principal{Tenant: "acme", Subject: "agent:acme/1", Owner: "olga", Chain: []*identityv1.Principal{bot}}
	grandchild := &identityv1.Principal{Tenant: "acme", Subject: "agent:acme/2", Owner: "olga", Chain: []*identityv1.Principal{{Tenant: "acme", Subject: "agent:acme/1"}, bot}}
	for _, p := range []*identityv1.Principal{child, grandchild} {
		if !r.Open(of(p)).Add(2 * mib) {
			t.Fatalf("%s has no room", p.GetSubject())
		}
	}
	for _, p := range []*identityv1.Principal{bot, child, grandchild} {
		if r.Open(of(p)).Add(mib) {
			t.Errorf("%s has more than its maker's room", p.GetSubject())
		}
	}
	for _, p := range []*identityv1.Principal{{Tenant: "acme", Subject: "other", Owner: "olga"}, {Tenant: "globex", Subject: "bot"}} {
		if !r.Open(of(p)).Add(4 * mib) {
			t.Errorf("%s of %s has no room", p.GetSubject(), p.GetTenant())
		}
	}
}
