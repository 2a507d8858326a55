package wasmagent_test

import (
	"encoding/binary"
	"testing"

	"google.golang.org/grpc/codes"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
)

// withOtherDigest returns a module that has the same behavior but a different digest, like the module of a new release.
func withOtherDigest(module []byte) []byte {
	name := "release"
	custom := append([]byte{byte(len(name))}, name...)
	return append(append(append([]byte(nil), module...), 0), append(binary.AppendUvarint(nil, uint64(len(custom))), custom...)...)
}

// changeGuest replaces the module of a listed guest and restarts the service. If module is nil, it removes the guest.
func (l *restartableService) changeGuest(name string, module []byte) {
	l.t.Helper()
	l.close()
	l.cfg.Guests = map[string]modules.Listed{}
	if module != nil {
		l.cfg.Guests[name] = listedGuest(l.t, l.t.TempDir(), name, module)
	}
	l.start()
}

// The module of a guest changes. Existing agents keep running the earlier module. They accept prompts, continue turns
// that wait for an approval, and can be verified, forked, exported and imported. An agent that is migrated runs the new
// module and keeps its files, todos and conversation.
func TestMigrate_AgentsKeepRunningWhenGuestChanges(t *testing.T) {
	t.Parallel()
	before := guesttest.Module(t, guesttest.Guests+"script")
	gateway := &paymentGateway{made: make(map[string]int), used: make(map[string]bool), approved: make(chan struct{})}
	l := newRestartableService(t, gateway.answer)
	l.changeGuest("mine", before)
	c := l.onBehalfOfUser(t, "ana")
	manifest := toolManifest("pay")
	manifest.Files = &wasmagentv1.FileRight{Bytes: 1 << 20, Count: 10}
	id := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("mine"), Manifest: manifest})
	c.mustPrompt(id, "write a.txt one\ntodo pending x\nsay hello")
	snapshot, err := c.SnapshotAgent(c.ctx, &wasmagentv1.SnapshotAgentRequest{AgentId: id})
	if err != nil {
		t.Fatal(err)
	}
	parked := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("mine"), Manifest: manifest})
	if answer := c.mustPrompt(parked, "tool demo pay {}"); answer.GetFinished() {
		t.Fatalf("the prompt does not wait for an approval: %v", answer)
	}

	l.changeGuest("mine", withOtherDigest(before))
	c = l.onBehalfOfUser(t, "ana")
	close(gateway.approved)
	eventually.Holds(t, "a waiting turn continues with its module", func() bool { return c.state(parked).GetInfo().GetTurnCount() == 1 })
	if answer := c.mustPrompt(id, "read a.txt\ntodo completed x").GetResponse(); answer != "one" || len(c.todos(id)) != 1 {
		t.Errorf("with the earlier module the agent answers %q, and has the todos %v", answer, c.todos(id))
	}
	c.verifyMatches(id)
	old := c.state(id).GetInfo().GetModuleDigest()
	created := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("mine")})
	if now := c.state(created).GetInfo().GetModuleDigest(); now == old {
		t.Error("a new agent runs the earlier module")
	}
	fork, err := c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: id, SnapshotId: new(snapshot.GetSnapshot().GetId())})
	if err != nil {
		t.Fatal(err)
	}
	if answer := c.mustPrompt(fork.GetAgent().GetId(), "read a.txt").GetResponse(); answer != "one" {
		t.Errorf("a fork with the earlier module answers %q", answer)
	}
	archived, _ := c.exportArchive(id)
	if _, err := c.importArchive(archived, 1<<20); err != nil {
		t.Errorf("the import of an archive with the earlier module: %v", err)
	}

	messages := c.state(id).GetState().GetMessages()
	moved, err := c.MigrateAgent(c.ctx, &wasmagentv1.MigrateAgentRequest{AgentId: id})
	if err != nil || moved.GetFromDigest() != old || moved.GetAgent().GetModuleDigest() == old {
		t.Fatalf("the agent is migrated as %v, %v", moved, err)
	}
	if now := c.state(id).GetState().GetMessages(); len(now) != len(messages) || now[0].GetContent() != messages[0].GetContent() {
		t.Errorf("the conversation is %v after the migration, and was %v before", now, messages)
	}
	if answer := c.mustPrompt(id, "read a.txt\ntodo pending x").GetResponse(); answer != "one" || len(c.todos(id)) != 1 || c.todos(id)[0].GetStatus() != wasmagentv1.TodoStatus_TODO_STATUS_PENDING {
		t.Errorf("the migrated agent answers %q, and has the todos %v", answer, c.todos(id))
	}
	c.verifyMatches(id)
	if second, err := c.MigrateAgent(c.ctx, &wasmagentv1.MigrateAgentRequest{AgentId: id}); err != nil || second.GetFromDigest() != "" {
		t.Errorf("a second migration returns %v, %v", second, err)
	}

	l.changeGuest("mine", nil)
	c = l.onBehalfOfUser(t, "ana")
	_, _, err = c.prompt(id, "say here")
	rpctest.WantStatus(t, err, codes.NotFound, "GUEST_UNKNOWN")
}

// After a migration, an agent still sends its model the conversation from before the migration.
func TestMigrate_ModelGetsConversation(t *testing.T) {
	t.Parallel()
	module := guesttest.Module(t, guesttest.Guests+"agent")
	gateway := new(modelRecorder)
	l := newRestartableServiceAt(t, modelGateway{fakeGateway{answer: gateway.answer}})
	l.cfg.Model, l.cfg.Server = "script:lines", "agents"
	l.changeGuest("thinker", module)
	c := l.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("thinker"), Instructions: new("Be brief.")})
	c.mustPrompt(id, "Is it so?")
	l.changeGuest("thinker", withOtherDigest(module))
	c = l.onBehalfOfUser(t, "ana")
	if _, err := c.MigrateAgent(c.ctx, &wasmagentv1.MigrateAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	c.mustPrompt(id, "Are you sure?")
	sent := gateway.last(t).Messages
	var messages []string
	for _, m := range sent {
		messages = append(messages, m.Role+": "+m.Content)
	}
	want := []string{"system: Be brief.", "user: Is it so?", "assistant: yes", "user: Are you sure?"}
	if len(messages) != len(want) {
		t.Fatalf("the model gets %q, want %q", messages, want)
	}
	for i := range want {
		if messages[i] != want[i] {
			t.Errorf("the model gets %q, want %q", messages[i], want[i])
		}
	}
	c.verifyMatches(id)
}

// The bytes of a module are changed in the store. A prompt to an agent that needs the module is refused.
func TestPrompt_RefusesChangedStoredModule(t *testing.T) {
	t.Parallel()
	before := guesttest.Module(t, guesttest.Guests+"script")
	l := newRestartableService(t, nil)
	l.changeGuest("mine", before)
	id := l.onBehalfOfUser(t, "ana").create(&wasmagentv1.CreateAgentRequest{Guest: new("mine")})
	l.forge(func(f *forger) {
		f.exec("UPDATE modules SET module = $1 WHERE guest = 'mine'", withOtherDigest(withOtherDigest(before)))
	})
	l.changeGuest("mine", withOtherDigest(before))
	_, _, err := l.onBehalfOfUser(t, "ana").prompt(id, "say here")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "GUEST_CHANGED")
}
