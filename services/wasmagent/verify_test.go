package wasmagent_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	_ "modernc.org/sqlite" // the driver "sqlite"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func (c client) verify(id string) *wasmagentv1.VerifyAgentResponse {
	c.t.Helper()
	resp, err := c.VerifyAgent(c.ctx, &wasmagentv1.VerifyAgentRequest{AgentId: id})
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func (c client) verifyMatches(id string) *wasmagentv1.VerifyAgentResponse {
	c.t.Helper()
	resp := c.verify(id)
	if resp.GetVerification() != wasmagentv1.Verification_VERIFICATION_MATCHES || resp.GetFuelRecorded() != resp.GetFuelReplayed() || resp.GetFuelRecorded() == 0 {
		c.t.Errorf("verified: %v", resp)
	}
	return resp
}

// events returns all events of an agent's journal. It reads the journal in pages.
func (c client) events(id string) (all []*wasmagentv1.Event) {
	c.t.Helper()
	for token := ""; ; {
		resp, err := c.ListEvents(c.ctx, &wasmagentv1.ListEventsRequest{AgentId: id, PageSize: 7, PageToken: token})
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, resp.GetEvents()...)
		token = resp.GetNextPageToken()
		if !resp.GetMore() {
			return all
		}
	}
}

func eventWords(all []*wasmagentv1.Event) string {
	var out []string
	for _, e := range all {
		word := strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "EVENT_KIND_"))
		if e.GetEffect() != 0 {
			word += " " + strings.ToLower(strings.TrimPrefix(e.GetEffect().String(), "EFFECT_KIND_"))
		}
		if e.GetMessage() != "" {
			answer, _, _ := strings.Cut(e.GetMessage(), ":")
			word += " (" + answer + ")"
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

// The journal records each effect in order, with the caller and the decision. Rerunning the guest produces the same
// effects.
func TestVerify_MatchesRecordedEffects(t *testing.T) {
	t.Parallel()
	m := newTestServiceWith(t, func(_ context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		if req.GetTool() == "no" {
			return refusal(commonv1.Code_CODE_DENIED_BY_RULE, "no"), nil
		}
		return answerOf("done"), nil
	})
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: &wasmagentv1.Manifest{
		Tools: toolManifest("t", "no").GetTools(), Files: &wasmagentv1.FileRight{Bytes: 1 << 20, Count: 10},
	}})
	c.mustPrompt(id, "write a.txt one\ntool demo t {}\ntool demo no\ntodo pending x")
	if _, _, err := c.prompt(id, "write a.txt two\nfail on purpose"); err == nil {
		t.Error("a turn that fails answers")
	}
	all := c.events(id)
	want := "lifecycle (created), stored, input, emitted finish, input, emitted fs, result fs, emitted tool, sent tool, result tool, emitted tool, sent tool, result tool, " +
		"emitted todo, result todo, emitted finish, stored, input, emitted fs, result fs, emitted fail, stored"
	if got := eventWords(all); got != want {
		t.Errorf("the journal is\n%s\nwant\n%s", got, want)
	}
	if all[0].GetActor() != "ana" || all[4].GetActor() != "ana" || !strings.Contains(all[4].GetEnvelopeJson(), "write a.txt one") {
		t.Errorf("the actor or the effect is missing: %v %v", all[0], all[4])
	}
	if all[9].GetDecisionId() != "d-1" || all[12].GetCode() != commonv1.Code_CODE_DENIED_BY_RULE || all[9].GetEffectSequence() != all[7].GetSequence() {
		t.Errorf("the decision is missing: %v %v", all[9], all[12])
	}
	if proof := c.verifyMatches(id); proof.GetEvents() != int64(len(all)) || proof.GetSteps() != 8 || proof.GetEffects() != 5 || proof.GetJournalHead() != all[len(all)-1].GetHash() {
		t.Errorf("verified: %v", proof)
	}
}

// An agent can be verified after turns were undone, after it was resumed from a snapshot, and after a fork.
func TestVerify_MatchesAfterUndoAndFork(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Limits: &wasmagentv1.Limits{EffectsPerTurn: new(int32(5))}})
	c.mustPrompt(id, "todo pending x\nwrite a.txt one")
	snapshot, err := c.SnapshotAgent(c.ctx, &wasmagentv1.SnapshotAgentRequest{AgentId: id, Label: new("before")})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.prompt(id, strings.Repeat("emit x\n", 9)); err == nil { // exceeds the maximum number of effects
		t.Fatal("a prompt with too many effects is answered")
	}
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	c.mustPrompt(id, "todo pending y\nwrite a.txt two\nwrite b.txt three")
	fork, err := c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: id})
	if err != nil {
		t.Fatal(err)
	}
	early, err := c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: id, SnapshotId: new(snapshot.GetSnapshot().GetId())})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id, SnapshotId: new(snapshot.GetSnapshot().GetId())}); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		id          string
		todos, file string
	}{
		"rewound":                  {id, "x z", "one"},
		"forked":                   {fork.GetAgent().GetId(), "x y z", "two"},
		"forked from the snapshot": {early.GetAgent().GetId(), "x z", "one"},
		"rewound, with all events": {id, "x z", "one"},
	} {
		if answer := c.mustPrompt(tt.id, "todo pending z\nread a.txt").GetResponse(); answer != tt.file {
			t.Errorf("%s: the file has %q, want %q", name, answer, tt.file)
		}
		var todos []string
		for _, todo := range c.todos(tt.id) {
			todos = append(todos, todo.GetContent())
		}
		if got := strings.Join(todos, " "); got != tt.todos {
			t.Errorf("%s: the todos are %s, want %s", name, got, tt.todos)
		}
		c.verifyMatches(tt.id)
	}
	if _, err := c.ResetAgent(c.ctx, &wasmagentv1.ResetAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	c.mustPrompt(id, "say again")
	c.verifyMatches(id)
	if f := fork.GetAgent(); f.GetForkedFrom() != id || f.GetJournalId() != id || f.GetEpoch() != 2 || len(c.state(f.GetId()).GetSnapshots()) != 0 {
		t.Errorf("the fork is %v", f)
	}
	_, err = c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: id, SnapshotId: new("other")})
	rpctest.WantStatus(t, err, codes.NotFound, "SNAPSHOT_UNKNOWN")
}

func TestAgents_SurviveRestart(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	c := l.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Instructions: new("Be brief.")})
	terminated := c.create(new(wasmagentv1.CreateAgentRequest))
	c.mustPrompt(id, "todo pending x\nwrite a.txt one\nsay hello")
	if _, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: id, Reason: new("to look at it")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: terminated}); err != nil {
		t.Fatal(err)
	}
	before := c.state(id)
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	after := c.state(id)
	if after.String() != before.String() {
		t.Errorf("after a restart the agent is\n%v\nbefore it was\n%v", after, before)
	}
	if list, err := c.ListAgents(c.ctx, new(wasmagentv1.ListAgentsRequest)); err != nil || list.GetCount() != 1 || list.GetAgents()[0].GetId() != id {
		t.Errorf("the list has %v %v", list, err)
	}
	for _, one := range []string{id, terminated} {
		if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: one}); err != nil {
			t.Fatal(err)
		}
	}
	if answer := c.mustPrompt(id, "todo completed x\nread a.txt").GetResponse(); answer != "one" || len(c.todos(id)) != 1 {
		t.Errorf("the agent answers %q, and its todos are %v", answer, c.todos(id))
	}
	c.verifyMatches(id)
	if got := eventWords(c.events(id)); !strings.Contains(got, "lifecycle (stopped), stored, lifecycle (resumed)") {
		t.Errorf("the journal is %s", got)
	}
}

func TestVerify_FindsDamagedJournal(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, nil)
	c := l.onBehalfOfUser(t, "ana")
	for name, damage := range map[string]string{
		"a byte":          "UPDATE events SET event = CAST(substr(event, 1, length(event) - 1) || char(33) AS BLOB) WHERE id = $1 AND place = 5",
		"an event":        "DELETE FROM events WHERE id = $1 AND place = 4",
		"the end":         "DELETE FROM events WHERE id = $1 AND place = 9",
		"another's event": "UPDATE events SET event = (SELECT event FROM events AS other WHERE other.id = $1 AND other.place = 6) WHERE id = $1 AND place = 5",
	} {
		id := c.create(new(wasmagentv1.CreateAgentRequest))
		c.mustPrompt(id, "emit x")
		c.verifyMatches(id)
		l.close()
		db, err := sql.Open("sqlite", filepath.Join(l.cfg.Data, "wasmagent", "agents.db"))
		if err != nil {
			t.Fatal(err)
		}
		if done, err := db.Exec(damage, id); err != nil {
			t.Fatal(err)
		} else if n, _ := done.RowsAffected(); n != 1 {
			t.Fatalf("%s: %d rows", name, n)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		l.start()
		c = l.onBehalfOfUser(t, "ana")
		if found := c.verify(id); found.GetVerification() != wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// A turn that waits for an approval survives restarts. When the approval is granted, the approved call runs once, and
// the turn continues.
func TestParkedTurn_SurvivesRestarts(t *testing.T) {
	t.Parallel()
	decided, made := make(chan struct{}), 0
	l := newRestartableService(t, func(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		if req.GetTool() == "plain" {
			return answerOf("plain"), nil
		}
		select {
		case <-decided:
			if req.GetApprovalId() != "a-1" {
				return nil, fmt.Errorf("the approval is %q", req.GetApprovalId())
			}
			made++
			return answerOf("granted"), nil
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		out := refusal(commonv1.Code_CODE_APPROVAL_PENDING, "waits")
		out.Decision.Approval = &gatewayv1.ApprovalInfo{Id: "a-1"}
		return out, nil
	})
	c := l.onBehalfOfUser(t, "ana")
	manifest := toolManifest("t", "plain")
	manifest.Tools[0].Calls = new(int32(1))
	manifest.Files = &wasmagentv1.FileRight{Bytes: 1000, Count: 3}
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest})
	answer := c.mustPrompt(id, "todo pending x\nwrite a.txt one\ntool demo plain\ntool demo t\nappend a.txt two\ntodo completed x\ntool demo t\nread a.txt")
	if answer.GetFinished() {
		t.Fatalf("the prompt does not wait for an approval: %v", answer)
	}
	for range 2 { // a turn can be continued more than once
		l.close()
		l.start()
		c = l.onBehalfOfUser(t, "ana")
		eventually.Holds(t, "the agent waits for the approval", func() bool { return c.state(id).GetInfo().GetWaiting().GetApprovalId() == "a-1" })
	}
	_, _, err := c.prompt(id, "x")
	rpctest.WantStatus(t, err, codes.Aborted, "AGENT_BUSY")
	close(decided)
	eventually.Holds(t, "the turn ends", func() bool { return c.state(id).GetInfo().GetTurnCount() == 1 })
	messages := c.state(id).GetState().GetMessages()
	want := "plain\ngranted\nline 7: not_in_manifest: the agent has made as many such calls as its manifest allows: t of demo\nonetwo\n"
	if got := messages[len(messages)-1].GetContent(); strings.TrimSpace(got) != strings.TrimSpace(want) || made != 1 {
		t.Errorf("the agent answers %q, and %d calls were made", got, made)
	}
	if todos := c.todos(id); len(todos) != 1 || todos[0].GetStatus() != wasmagentv1.TodoStatus_TODO_STATUS_COMPLETED || !slices.Equal(c.files(id), []string{"a.txt"}) {
		t.Errorf("the todos are %v, and the files %v", todos, c.files(id))
	}
	c.verifyMatches(id)
}

// Rights can be granted, with or without an expiry time, and can be withdrawn. An agent can't grant rights to itself.
func TestGrantRights_ExpireAndAreWithdrawn(t *testing.T) {
	t.Parallel()
	m := newTestServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return answerOf("ran"), nil
	})
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	grant := func(req *wasmagentv1.GrantRightsRequest) (*wasmagentv1.GrantRightsResponse, error) {
		req.AgentId, req.Reason = id, "for a test"
		return c.GrantRights(c.ctx, req)
	}
	if answer := c.mustPrompt(id, "tool demo t").GetResponse(); !strings.Contains(answer, "not_in_manifest") {
		t.Errorf("the agent answers %q", answer)
	}
	granted, err := grant(&wasmagentv1.GrantRightsRequest{Rights: toolManifest("t")})
	if err != nil {
		t.Fatal(err)
	}
	if answer := c.mustPrompt(id, "tool demo t").GetResponse(); answer != "ran" {
		t.Errorf("the agent answers %q", answer)
	}
	tools, err := c.ListTools(c.ctx, &wasmagentv1.ListToolsRequest{AgentId: id})
	if err != nil || len(tools.GetRights()) != 1 || len(c.state(id).GetGrants()) != 1 || granted.GetGrant().GetGrantedBy() != "ana" {
		t.Errorf("the rights are %v, and the grants %v: %v", tools.GetRights(), c.state(id).GetGrants(), err)
	}
	if _, err := grant(&wasmagentv1.GrantRightsRequest{Withdraw: []string{granted.GetGrant().GetId()}}); err != nil {
		t.Fatal(err)
	}
	if answer := c.mustPrompt(id, "tool demo t").GetResponse(); !strings.Contains(answer, "not_in_manifest") {
		t.Errorf("the agent answers %q", answer)
	}
	if _, err := grant(&wasmagentv1.GrantRightsRequest{Rights: toolManifest("t"), ExpiresIn: durationpb.New(time.Second)}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the grant expires", func() bool { return len(c.state(id).GetGrants()) == 0 })
	if answer := c.mustPrompt(id, "tool demo t").GetResponse(); !strings.Contains(answer, "not_in_manifest") {
		t.Errorf("the agent answers %q", answer)
	}
	_, err = grant(new(wasmagentv1.GrantRightsRequest))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "GRANT_EMPTY")
	_, err = grant(&wasmagentv1.GrantRightsRequest{Withdraw: []string{"other"}})
	rpctest.WantStatus(t, err, codes.NotFound, "GRANT_UNKNOWN")
	self := m.onBehalfOfUser(t, "agent:default/"+id)
	_, err = self.GrantRights(self.ctx, &wasmagentv1.GrantRightsRequest{AgentId: id, Rights: toolManifest("t"), Reason: "I want it"})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "GRANT_TO_SELF")
	c.verifyMatches(id)
}

// A call to ListEvents with a wait time returns as soon as there are further events, or when the wait time ends.
func TestListEvents_WaitsForEvents(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	page, err := c.ListEvents(c.ctx, &wasmagentv1.ListEventsRequest{AgentId: id})
	if err != nil || len(page.GetEvents()) != 2 || page.GetMore() {
		t.Fatalf("%v %v", page, err)
	}
	go func() {
		time.Sleep(100 * time.Millisecond)
		_, _, _ = c.prompt(id, "say x")
	}()
	for received := 0; received < 5; received += len(page.GetEvents()) { // the turn may store its events in several steps
		page, err = c.ListEvents(c.ctx, &wasmagentv1.ListEventsRequest{AgentId: id, PageToken: page.GetNextPageToken(), Wait: durationpb.New(30 * time.Second)})
		if err != nil || len(page.GetEvents()) == 0 {
			t.Fatalf("%v %v", page, err)
		}
	}
	page, err = c.ListEvents(c.ctx, &wasmagentv1.ListEventsRequest{AgentId: id, PageToken: page.GetNextPageToken(), Wait: durationpb.New(10 * time.Millisecond)})
	if err != nil || len(page.GetEvents()) != 0 || page.GetNextPageToken() != "7" {
		t.Fatalf("%v %v", page, err)
	}
}
