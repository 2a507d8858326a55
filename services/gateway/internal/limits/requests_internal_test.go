package limits

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// Case N2. All agents of one person share a quota for requests in flight. This includes agents that other agents have
// created. The quota is four times the quota of a principal.
func TestBegin_PersonsAgentsShareAQuota(t *testing.T) {
	t.Parallel()
	bodies, err := NewBudget(BodyQuotas())
	if err != nil {
		t.Fatal(err)
	}
	all, err := NewRequests(bodies, bodies)
	if err != nil {
		t.Fatal(err)
	}
	agent := func(i int) *identityv1.Principal {
		return &identityv1.Principal{Tenant: "acme", Subject: fmt.Sprintf("agent-%d", i), Owner: "olga"}
	}
	var places []*Slot
	for i := range 4 * maxRequests {
		p, err := all.Begin(agent(i%8), "files")
		if err != nil {
			t.Fatalf("request %d was refused", i)
		}
		places = append(places, p)
	}
	for name, who := range map[string]*identityv1.Principal{
		"another agent": agent(9), "the person": {Tenant: "acme", Subject: "olga"},
		"an agent's agent": {Tenant: "acme", Subject: "made", Chain: []*identityv1.Principal{agent(1)}},
	} {
		if _, err := all.Begin(who, "files"); err == nil {
			t.Errorf("%s exceeds the person's quota", name)
		}
	}
	for name, who := range map[string]*identityv1.Principal{
		"of another tenant": {Tenant: "other", Subject: "olga"}, "of another person": {Tenant: "acme", Subject: "ben"},
	} {
		if p, err := all.Begin(who, "files"); err != nil {
			t.Errorf("%s was refused", name)
		} else {
			p.End()
		}
	}
	for _, p := range places {
		p.End()
	}
	if n := all.requests.Len() + all.perServer.Len() + all.bytes.Len(); n != 0 {
		t.Errorf("%d counts remain after all have ended", n)
	}
}

// Case N2. A principal may use at most half of its quota of requests in flight for one server, so that a server that
// does not respond cannot block the principal's requests to other servers. Messages that need no admission are still
// accepted.
func TestAdmit_RequestsAtOneServerAreLimited(t *testing.T) {
	t.Parallel()
	bodies, err := NewBudget(BodyQuotas())
	if err != nil {
		t.Fatal(err)
	}
	all, err := NewRequests(bodies, bodies)
	if err != nil {
		t.Fatal(err)
	}
	ana := &identityv1.Principal{Tenant: "acme", Subject: "ana"}
	enter := func(server string) *Slot {
		t.Helper()
		p, err := all.Begin(ana, server)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var places []*Slot
	for i := range maxPerServer {
		p := enter("hangs")
		if err := errors.Join(p.Admit(t.Context()), p.Admit(t.Context())); err != nil {
			t.Fatalf("request %d was refused: %v", i, err)
		}
		places = append(places, p)
	}
	more, other := enter("hangs"), enter("works")
	if err := more.Admit(t.Context()); !errors.Is(err, ErrServer) {
		t.Errorf("one more: %v", err)
	}
	if err := other.Admit(t.Context()); err != nil {
		t.Errorf("one to another server: %v", err)
	}
	places[0].End()
	if err := more.Admit(t.Context()); err != nil {
		t.Errorf("an ended request still counts: %v", err)
	}
	for _, p := range append(places[1:], more, other) {
		p.End()
	}
	if n := all.requests.Len() + all.perServer.Len() + all.bytes.Len(); n != 0 {
		t.Errorf("%d counts remain after all have ended", n)
	}
}

// An agent's requests count against the quota of the principal that has created the agent. A principal that has agents
// gets no larger quota than a principal without agents, neither per server nor in total.
func TestBegin_AgentsShareTheQuotaOfTheirMaker(t *testing.T) {
	t.Parallel()
	bodies, err := NewBudget(BodyQuotas())
	if err != nil {
		t.Fatal(err)
	}
	all, err := NewRequests(bodies, bodies)
	if err != nil {
		t.Fatal(err)
	}
	bot := &identityv1.Principal{Tenant: "acme", Subject: "bot", Owner: "olga"}
	agent := func(i int) *identityv1.Principal {
		middle := &identityv1.Principal{Tenant: "acme", Subject: fmt.Sprintf("agent:acme/m%d", i), Owner: "olga"}
		return &identityv1.Principal{Tenant: "acme", Subject: fmt.Sprintf("agent:acme/%d", i), Owner: "olga", Chain: []*identityv1.Principal{middle, bot}}
	}
	for i := range maxRequests {
		p, err := all.Begin(agent(i), "files")
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if admitted := p.admit() == nil; admitted != (i < maxPerServer) {
			t.Fatalf("request %d is admitted: %v", i, admitted)
		}
	}
	for name, who := range map[string]*identityv1.Principal{"the maker": bot, "another agent": agent(maxRequests)} {
		if _, err := all.Begin(who, "files"); !errors.Is(err, ErrRequests) || !strings.Contains(err.Error(), "bot and agents made by bot hold 512 of 512 requests in flight") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, who := range []*identityv1.Principal{{Tenant: "acme", Subject: "other", Owner: "olga"}, {Tenant: "globex", Subject: "bot", Owner: "olga"}} {
		if p, err := all.Begin(who, "files"); err != nil || p.admit() != nil {
			t.Errorf("%s of %s: %v", who.GetSubject(), who.GetTenant(), err)
		}
	}
}
