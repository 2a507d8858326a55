package room_test

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
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
		both := holder("agent-4")
		both.Persons = append(both.Persons, works(both, "ana").Persons...)
		if r.Open(both).Add(mib) {
			t.Error("who works for two has the room of one")
		}
		if r.Open(&room.Holder{Principal: ana.Principal}).Add(1<<20) || !r.Open(works(&room.Holder{Principal: principal.Key{Tenant: "other", Subject: "ana"}}, "dan")).Add(room.Free) {
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
