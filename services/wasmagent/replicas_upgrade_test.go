package wasmagent_test

import (
	"fmt"
	"testing"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
)

// During an upgrade, two replicas with different modules of the same guest share their agents. Each replica can run the
// agents that the other replica created. These agents keep the module with which they were created. When either replica
// is stopped, the other replica continues the turns that waited in it.
func TestReplicas_RunBothModulesDuringUpgrade(t *testing.T) {
	t.Parallel()
	server := sqlstoretest.Start(t)
	database := server.Database(t)
	before := guesttest.Module(t, guesttest.Guests+"script")
	gateway := &paymentGateway{made: make(map[string]int), used: make(map[string]bool), approved: make(chan struct{})}
	states := "file://" + t.TempDir() + "?metadata=skip&no_tmp_dir=true"
	start := func(module []byte) *restartableService {
		l := &restartableService{t: t, gateway: fakeGateway{answer: gateway.answer}, cfg: wasmagent.Config{
			Data: t.TempDir(), Source: database, Bucket: states,
			Guests: map[string]modules.Listed{"mine": listedGuest(t, t.TempDir(), "mine", module)},
		}}
		l.start()
		t.Cleanup(l.close)
		return l
	}
	old, upgraded := start(before), start(withOtherDigest(before))
	replicas := []client{old.onBehalfOfUser(t, "ana"), upgraded.onBehalfOfUser(t, "ana")}

	manifest := toolManifest("pay")
	manifest.Files = &wasmagentv1.FileRight{Bytes: 1 << 20, Count: 10}
	var ids, waiting, digests []string
	for i, c := range replicas {
		id := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("mine"), Manifest: manifest})
		c.mustPrompt(id, "write a.txt one")
		ids, digests = append(ids, id), append(digests, c.state(id).GetInfo().GetModuleDigest())
		parked := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("mine"), Manifest: manifest})
		if answer := c.mustPrompt(parked, fmt.Sprintf("tool demo pay {\"n\":%d}", i)); answer.GetFinished() {
			t.Fatalf("the prompt does not wait for an approval: %v", answer)
		}
		waiting = append(waiting, parked)
	}
	if digests[0] == digests[1] {
		t.Fatal("both replicas create agents with the same module")
	}
	for i, id := range ids {
		other := replicas[1-i]
		if answer := other.mustPrompt(id, "read a.txt").GetResponse(); answer != "one" {
			t.Errorf("in the other replica the agent answers %q", answer)
		}
		if digest := other.state(id).GetInfo().GetModuleDigest(); digest != digests[i] {
			t.Errorf("the other replica runs the module %s, and the agent began with %s", digest, digests[i])
		}
		other.verifyMatches(id)
	}

	// The old replica is stopped, and the upgraded replica continues the old replica's waiting turn. The approved calls
	// of both waiting turns are made once.
	old.close()
	close(gateway.approved)
	for _, id := range waiting {
		eventually.Holds(t, "the waiting turn continues in the upgraded replica", func() bool { return replicas[1].state(id).GetInfo().GetTurnCount() == 1 })
		replicas[1].verifyMatches(id)
	}
	gateway.mu.Lock()
	for i := range waiting {
		if n := gateway.made[fmt.Sprintf("pay {\"n\":%d}", i)]; n != 1 {
			t.Errorf("the approved call of replica %d was made %d times", i, n)
		}
	}
	gateway.mu.Unlock()

	// The upgrade is undone: an old replica runs the agents of both modules.
	upgraded.close()
	back := start(before).onBehalfOfUser(t, "ana")
	for _, id := range append(ids, waiting...) {
		if answer := back.mustPrompt(id, "say here").GetResponse(); answer != "here" {
			t.Errorf("after the undone upgrade the agent answers %q", answer)
		}
	}
	moved, err := back.MigrateAgent(back.ctx, &wasmagentv1.MigrateAgentRequest{AgentId: ids[1]})
	if err != nil || moved.GetFromDigest() != digests[1] || moved.GetAgent().GetModuleDigest() != digests[0] {
		t.Errorf("the agent is migrated back as %v, %v", moved, err)
	}
}
