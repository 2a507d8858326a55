package pipeline

import (
	"fmt"
	"strings"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

var bot = &identityv1.Principal{Tenant: "t", Subject: "bot", Owner: "olga"}

// agentOf returns an agent that another agent has created. The principal bot has created that other agent.
func agentOf(i int) *identityv1.Principal {
	middle := &identityv1.Principal{Tenant: "t", Subject: fmt.Sprint("agent:t/m", i%2), Owner: "olga"}
	return &identityv1.Principal{Tenant: "t", Subject: fmt.Sprint("agent:t/", i), Owner: "olga", Chain: []*identityv1.Principal{middle, bot}}
}

func TestCountExempt_AgentsShareTheQuotaOfTheirMaker(t *testing.T) {
	t.Parallel()
	c, now := newExemptCounter(), time.Now()
	send := func(p *identityv1.Principal) error {
		return c.count(ExemptMessage{Principal: p, Server: "s", Method: "ping", Bytes: 1}, now)
	}
	for i := range maxExempt {
		if err := send(agentOf(i % 50)); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	for _, p := range []*identityv1.Principal{bot, agentOf(60)} {
		if err := send(p); err == nil || !strings.Contains(err.Error(), "bot and agents made by bot hold 10000 of 10000 messages") {
			t.Errorf("%s: %v", p.GetSubject(), err)
		}
	}
	for _, p := range []*identityv1.Principal{{Tenant: "t", Subject: "other", Owner: "olga"}, {Tenant: "u", Subject: "bot", Owner: "olga"}} {
		if err := send(p); err != nil {
			t.Errorf("%s of %s: %v", p.GetSubject(), p.GetTenant(), err)
		}
	}
	now = now.Add(windowTime)
	if err := send(bot); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// Agents share the quota for recorded refusals with the principal that has created them. Otherwise many agents could
// displace other principals' records from the journal.
func TestRefusals_AgentsShareTheQuotaOfTheirMaker(t *testing.T) {
	t.Parallel()
	a, now, recorded := newRefusalCounter(), time.Now(), 0
	refuse := func(p *identityv1.Principal) bool {
		rec := &journal.Record{DecisionID: attempt.NewID(), Principal: attempt.PrincipalRecord(p)}
		for _, behind := range p.GetChain() {
			rec.Chain = append(rec.Chain, attempt.PrincipalRecord(behind))
		}
		id, _ := a.count(rec, now)
		return id == rec.DecisionID
	}
	for i := range 3 * maxRefusals {
		if refuse(agentOf(i % 30)) {
			recorded++
		}
	}
	if recorded != maxRefusals {
		t.Errorf("%d refusals of agents are recorded one by one, want %d", recorded, maxRefusals)
	}
	if refuse(bot) {
		t.Error("their maker has more than that quota")
	}
	if !refuse(&identityv1.Principal{Tenant: "t", Subject: "ben"}) || !refuse(&identityv1.Principal{Tenant: "u", Subject: "bot", Owner: "olga"}) {
		t.Error("a refusal of another caller is not recorded")
	}
}
