package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// A refusal is charged once to each principal of the chain and to each person, even if one person owns several of the
// principals. A chain that is longer than expected is charged, too.
func TestCharge_CountsEachGroupOnce(t *testing.T) {
	t.Parallel()
	rec := &journal.Record{Principal: journal.Principal{Tenant: "default", Subject: "agent", Owner: "ana"}}
	for n := range 2 * maxChain {
		rec.Chain = append(rec.Chain, journal.Principal{Tenant: "default", Subject: fmt.Sprintf("creator-%d", n), Owner: "ana"})
	}
	a := newRefusalCounter()
	if !a.charge(rec, time.Now()) {
		t.Fatal("the first refusal is not recorded individually")
	}
	if got := len(a.groups); got != 2+2*maxChain {
		t.Errorf("%d groups are charged, want the caller, %d creators and one person", got, 2*maxChain)
	}
	most := journal.RefusalSize(rec) * 3 / 2 // the number of digits of the time varies
	for g, s := range a.groups {
		if s.recorded != 1 || s.bytes <= 0 || s.bytes > most {
			t.Errorf("%+v is charged %d refusals with %d bytes", g, s.recorded, s.bytes)
		}
	}
}

// If the quota of one group is used up, no group is charged.
func TestCharge_ChargesNoGroupIfOneIsFull(t *testing.T) {
	t.Parallel()
	now, a := time.Now(), newRefusalCounter()
	person := group{offender: offender{Key: principal.Key{Tenant: "default", Subject: "ana"}}, person: true}
	a.groups[person] = &window{since: now, recorded: quota.PersonFactor * maxRefusals}
	rec := &journal.Record{Principal: journal.Principal{Tenant: "default", Subject: "agent", Owner: "ana"}}
	if a.charge(rec, now) {
		t.Error("the refusal is recorded individually, although its person has used up the quota")
	}
	for g, s := range a.groups {
		if g != person && s.recorded != 0 {
			t.Errorf("%+v is charged", g)
		}
	}
}
