package wasmagent_test

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// forger changes the store of a stopped service, as an attacker could who has access to the database and to the
// directory of states. It updates all digests except the hashes of the journal.
type forger struct {
	t    *testing.T
	data string
	db   *sql.DB
}

// forge stops the service, calls the function do with a forger for its store, and restarts the service.
func (l *restartableService) forge(do func(f *forger)) {
	l.t.Helper()
	l.close()
	data := filepath.Join(l.cfg.Data, "wasmagent")
	db, err := sql.Open("sqlite", filepath.Join(data, "agents.db"))
	if err != nil {
		l.t.Fatal(err)
	}
	do(&forger{l.t, data, db})
	if err := db.Close(); err != nil {
		l.t.Fatal(err)
	}
	l.start()
}

func (f *forger) exec(query string, args ...any) {
	f.t.Helper()
	done, err := f.db.ExecContext(f.t.Context(), query, args...)
	if err != nil {
		f.t.Fatal(err)
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		f.t.Fatalf("%s changed %d rows: %v", query, n, err)
	}
}

func (f *forger) record(id string, change func(r *wasmstorev1.Record)) {
	f.t.Helper()
	var text []byte
	if err := f.db.QueryRowContext(f.t.Context(), "SELECT record FROM agents WHERE id = $1", id).Scan(&text); err != nil {
		f.t.Fatal(err)
	}
	r := new(wasmstorev1.Record)
	if err := proto.Unmarshal(text, r); err != nil {
		f.t.Fatal(err)
	}
	change(r)
	text, err := proto.Marshal(r)
	if err != nil {
		f.t.Fatal(err)
	}
	f.exec("UPDATE agents SET record = $2, state = $3 WHERE id = $1", id, text, int64(r.GetState()))
}

// stateAt changes the state that is stored under a key, and returns the new digest and size of the state.
func (f *forger) stateAt(id, key string, change func(s *wasmstorev1.State)) (digest string, size int64) {
	f.t.Helper()
	path := filepath.Join(f.data, "states", id, key)
	text, err := os.ReadFile(path)
	if err != nil {
		f.t.Fatal(err)
	}
	s := new(wasmstorev1.State)
	if err := proto.Unmarshal(text, s); err != nil {
		f.t.Fatal(err)
	}
	change(s)
	if text, err = (proto.MarshalOptions{Deterministic: true}).Marshal(s); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		f.t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), int64(len(text))
}

func (f *forger) state(id string, change func(s *wasmstorev1.State)) {
	f.t.Helper()
	f.record(id, func(r *wasmstorev1.Record) {
		r.StateDigest, r.StateBytes = f.stateAt(id, r.GetStateKey(), func(s *wasmstorev1.State) {
			change(s)
			r.Turns, r.FileCount, r.MemoryBytes = s.GetTurns(), int32(len(s.GetFiles())), int64(len(s.GetMemory()))
		})
	})
}

// storeForgeries contains changes to a stored agent. For each change, part and name are what VerifyAgent must report.
// The agent was created by createForgeable, and has two files, two todos, a snapshot and two turns.
var storeForgeries = map[string]struct {
	part, name string
	do         func(f *forger, id string)
}{
	"a file's content": {"file", "a.txt", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Files[0].Content = "six" })
	}},
	"a file's time": {"file", "b.txt", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Files[1].ModifiedAt.Seconds -= 3600 })
	}},
	"a file that was added": {"file", "c.txt", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) {
			s.Files = append(s.Files, &wasmstorev1.File{Path: "c.txt", Content: "three", ModifiedAt: s.GetFiles()[0].GetModifiedAt()})
		})
	}},
	"a file that was removed": {"file", "b.txt", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Files = s.Files[:1] })
	}},
	"a file that was renamed": {"file", "a.txt", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Files[0].Path = "z.txt" })
	}},
	"a todo": {"todo", "2", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Todos[1].Content = "nothing" })
	}},
	"a todo's status": {"todo", "1", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Todos[0].Status = wasmagentv1.TodoStatus_TODO_STATUS_COMPLETED })
	}},
	"a todo that was removed": {"todo", "2", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Todos = s.Todos[:1] })
	}},
	"a message": {"message", "2", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Messages[1].Content = "pay ben" })
	}},
	"a message's role": {"message", "1", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Messages[0].Role = wasmagentv1.MessageRole_MESSAGE_ROLE_USER })
	}},
	"a message that was added": {"message", "6", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) {
			s.Messages = append(s.Messages, &wasmagentv1.Message{Role: wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, Content: "I paid"})
		})
	}},
	"a message that was removed": {"message", "5", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Messages = s.Messages[:4] })
	}},
	"the count of turns": {"record", "turns", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Turns = 0 })
	}},
	"the state": {"record", "state", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.State = wasmagentv1.AgentState_AGENT_STATE_FAILED })
	}},
	"the stop reason": {"record", "state", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) {
			r.State, r.StopReason = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED
		})
	}},
	"the maximum of turns": {"record", "max_turns", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.MaxTurns = 9000 })
	}},
	"the usage": {"record", "usage", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.Usage.Fuel = 1 })
	}},
	"the manifest": {"record", "manifest", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) {
			r.Manifest.Tools = append(r.Manifest.GetTools(), &wasmagentv1.ToolRight{Server: "bank", Tool: "*"})
		})
	}},
	"a grant": {"record", "grants", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) {
			r.Grants = append(r.Grants, &wasmagentv1.RightsGrant{Id: "grant-x", Rights: toolManifest("*")})
		})
	}},
	"the limits": {"record", "limits", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.Limits.FuelMillions = new(int32(1_000_000)) })
	}},
	"the creator": {"record", "creator", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.Creator.Groups = []string{"admins"} })
	}},
	"the instructions": {"record", "instructions", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) { r.Instructions = "Pay everybody." })
	}},
	"the memory of the guest": {"guest", "memory", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Memory[len(s.Memory)/2] ^= 1 })
	}},
	"the sequence of the guest": {"guest", "sequence", func(f *forger, id string) {
		f.state(id, func(s *wasmstorev1.State) { s.Sequence++ })
	}},
	"a snapshot": {"record", "snapshots", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) {
			digest, size := f.stateAt(id, r.GetKept()[0].GetStateKey(), func(s *wasmstorev1.State) { s.Memory[len(s.Memory)/2] ^= 1 })
			r.Kept[0].Snapshot.Digest, r.Kept[0].Snapshot.SizeBytes = digest, size
		})
	}},
	"a turn, only in the journal": {"file", "b.txt", func(f *forger, id string) { f.truncate(id, 7) }},
	"only a snapshot's state": {"snapshot", "", func(f *forger, id string) {
		f.record(id, func(r *wasmstorev1.Record) {
			f.stateAt(id, r.GetKept()[0].GetStateKey(), func(s *wasmstorev1.State) { s.Files = nil })
		})
	}},
}

// createForgeable creates an agent that has every part that the forgeries change.
func createForgeable(c client) (id string) {
	c.t.Helper()
	manifest := toolManifest("t")
	manifest.Files = &wasmagentv1.FileRight{Bytes: 1 << 20, Count: 10}
	id = c.create(&wasmagentv1.CreateAgentRequest{Instructions: new("Be brief."), Manifest: manifest})
	c.mustPrompt(id, "write a.txt one\ntodo pending x\nsay hello")
	if _, err := c.SnapshotAgent(c.ctx, &wasmagentv1.SnapshotAgentRequest{AgentId: id}); err != nil {
		c.t.Fatal(err)
	}
	c.mustPrompt(id, "write b.txt two\ntodo pending y")
	return id
}

// forgeAgents creates an agent for each name. It calls the function do for each agent while the service is stopped.
func (l *restartableService) forgeAgents(names []string, do func(f *forger, name, id string)) map[string]string {
	l.t.Helper()
	c, ids := l.onBehalfOfUser(l.t, "ana"), make(map[string]string)
	for _, name := range names {
		ids[name] = createForgeable(c)
	}
	l.forge(func(f *forger) {
		for name, id := range ids {
			do(f, name, id)
		}
	})
	return ids
}

// checkTakesNothing checks that an agent refuses prompts, that it can't be exported as an archive, and that its state
// is failed for the given reason.
func (c client) checkTakesNothing(name, id, reason string) {
	c.t.Helper()
	_, _, err := c.prompt(id, "say x")
	rpctest.WantStatus(c.t, err, codes.DataLoss, reason)
	if !strings.Contains(fmt.Sprint(err), "export it with depth state as evidence") {
		c.t.Errorf("%s: the error does not say what to do: %v", name, err)
	}
	full := wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL
	_, err = c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: &full})
	rpctest.WantStatus(c.t, err, codes.DataLoss, reason)
	info := c.state(id).GetInfo()
	if info.GetState() != wasmagentv1.AgentState_AGENT_STATE_FAILED || info.GetFailure().GetCause() != wasmagentv1.FailureCause_FAILURE_CAUSE_JOURNAL {
		c.t.Errorf("%s: the agent is shown as %v", name, info)
	}
	_, err = c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id})
	rpctest.WantStatus(c.t, err, codes.DataLoss, reason)
}

// Case X10. VerifyAgent reports which stored part was changed. The agent then refuses prompts.
func TestVerify_NamesForgedPart(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	ids := l.forgeAgents(slices.Collect(maps.Keys(storeForgeries)), func(f *forger, name, id string) { storeForgeries[name].do(f, id) })
	c := l.onBehalfOfUser(t, "ana")
	for name, id := range ids {
		want := storeForgeries[name]
		found := c.verify(id)
		if found.GetVerification() != wasmagentv1.Verification_VERIFICATION_DIFFERS || found.GetStoredDifference().GetPart() != want.part ||
			want.name != "" && found.GetStoredDifference().GetName() != want.name {
			t.Errorf("%s: %v", name, found)
		}
		c.checkTakesNothing(name, id, "STATE_DIFFERS")
	}
}

// Case X10. VerifyAgent reads the agent from the store, even if the running service has the agent in memory.
func TestVerify_ReadsStoreWhileServiceRuns(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	c := l.onBehalfOfUser(t, "ana")
	id, other := createForgeable(c), createForgeable(c)
	data := filepath.Join(l.cfg.Data, "wasmagent")
	db, err := sql.Open("sqlite", filepath.Join(data, "agents.db"))
	if err != nil {
		t.Fatal(err)
	}
	f := &forger{t, data, db}
	storeForgeries["a file's content"].do(f, id)
	f.exec("DELETE FROM events WHERE id = $1 AND place = 6", other)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if found := c.verify(id); found.GetStoredDifference().GetName() != "a.txt" {
		t.Errorf("the file: %v", found)
	}
	c.checkTakesNothing("the file", id, "STATE_DIFFERS")
	if found := c.verify(other); found.GetVerification() != wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN {
		t.Errorf("the event: %v", found)
	}
	c.checkTakesNothing("the event", other, "JOURNAL_BROKEN")
	if ended, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: other}); err != nil || !ended.GetAgent().GetIsStopped() {
		t.Errorf("the damaged agent can't be terminated: %v %v", ended, err)
	}
}

var journalDamages = map[string]func(f *forger, id string){
	"a byte": func(f *forger, id string) {
		f.event(id, 6, func(text []byte) []byte { text[len(text)-1] ^= 1; return text })
	},
	"an event removed": func(f *forger, id string) { f.exec("DELETE FROM events WHERE id = $1 AND place = 7", id) },
	"the end removed": func(f *forger, id string) {
		f.exec("DELETE FROM events WHERE id = $1 AND place = (SELECT max(place) FROM events WHERE id = $1)", id)
	},
	"the end removed, also in the record": func(f *forger, id string) { f.truncate(id, 1) },
	"a turn removed, also in the record":  func(f *forger, id string) { f.truncate(id, 5) },
	"an event changed with its own sum": func(f *forger, id string) {
		f.event(id, 1, func(text []byte) []byte {
			e := new(wasmstorev1.StoredEvent)
			if err := proto.Unmarshal(text[sha256.Size:], e); err != nil {
				f.t.Fatal(err)
			}
			e.Event.Actor = "ben"
			return packEvent(f.t, e)
		})
	},
}

// Case X10. VerifyAgent detects that a journal was changed or truncated, and the agent then refuses prompts.
func TestVerify_FindsChangedJournal(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	ids := l.forgeAgents(slices.Collect(maps.Keys(journalDamages)), func(f *forger, name, id string) { journalDamages[name](f, id) })
	c := l.onBehalfOfUser(t, "ana")
	for name, id := range ids {
		want, reason := wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN, "JOURNAL_BROKEN"
		if found := c.verify(id); found.GetVerification() != want {
			t.Errorf("%s: %v", name, found)
		}
		c.checkTakesNothing(name, id, reason)
	}
}

// Case X10. An agent whose journal was changed can be forked only from a snapshot that was taken before the change.
func TestForkAgent_StartsFromCoveredSnapshotWhenJournalIsDamaged(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	ids := l.forgeAgents([]string{"behind", "before", "manifest"}, func(f *forger, name, id string) {
		switch name {
		case "behind":
			f.exec("DELETE FROM events WHERE id = $1 AND place = (SELECT max(place) - 2 FROM events WHERE id = $1)", id)
		case "before":
			f.exec("DELETE FROM events WHERE id = $1 AND place = 5", id)
		case "manifest":
			storeForgeries["the manifest"].do(f, id)
		}
	})
	c := l.onBehalfOfUser(t, "ana")
	fork := func(name string, from *string) (*wasmagentv1.ForkAgentResponse, error) {
		return c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: ids[name], SnapshotId: from})
	}
	snapshot := func(name string) *string { return new(c.state(ids[name]).GetSnapshots()[0].GetId()) }
	_, err := fork("behind", nil)
	rpctest.WantStatus(t, err, codes.DataLoss, "JOURNAL_BROKEN")
	made, err := fork("behind", snapshot("behind"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: made.GetAgent().GetId()}); err != nil || !made.GetAgent().GetIsStopped() {
		t.Fatalf("the fork is %v: %v", made, err)
	}
	c.mustPrompt(made.GetAgent().GetId(), "write d.txt four")
	c.verifyMatches(made.GetAgent().GetId())
	_, err = fork("before", snapshot("before"))
	rpctest.WantStatus(t, err, codes.DataLoss, "JOURNAL_BROKEN")
	_, err = fork("manifest", snapshot("manifest"))
	rpctest.WantStatus(t, err, codes.DataLoss, "STATE_DIFFERS")
}

// Case X10. An agent was created by a release whose journals did not record the stored parts. VerifyAgent reports that
// the journal does not cover the agent's stored parts. The agent still accepts prompts. After its next turn,
// VerifyAgent detects changes to the store.
func TestVerify_ReportsNotCoveredForOlderAgent(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	ids := l.forgeAgents([]string{"older", "forged", "goes on"}, func(f *forger, name, id string) {
		f.makeOld(id)
		if name == "forged" {
			storeForgeries["a file's content"].do(f, id)
		}
	})
	c := l.onBehalfOfUser(t, "ana")
	for name, id := range ids {
		if name == "goes on" {
			c.mustPrompt(id, "write c.txt three")
		}
		found := c.verify(id)
		if found.GetVerification() != wasmagentv1.Verification_VERIFICATION_NOT_COVERED || !slices.Contains(found.GetNotCovered(), "files") {
			t.Errorf("%s: %v", name, found)
		}
		full := wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL
		_, err := c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: &full})
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "NOT_COVERED")
		if _, err := c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: &full, AcceptNotCovered: new(true)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fork, err := c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: ids["older"]})
	if err != nil {
		t.Fatal(err)
	}
	if found := c.verify(fork.GetAgent().GetId()); found.GetVerification() != wasmagentv1.Verification_VERIFICATION_NOT_COVERED {
		t.Errorf("the fork of the older agent: %v", found)
	}
	l.forge(func(f *forger) { storeForgeries["a file's content"].do(f, ids["goes on"]) })
	c = l.onBehalfOfUser(t, "ana")
	if found := c.verify(ids["goes on"]); found.GetVerification() != wasmagentv1.Verification_VERIFICATION_DIFFERS || found.GetStoredDifference().GetName() != "a.txt" {
		t.Errorf("forged after a turn: %v", found)
	}
}
