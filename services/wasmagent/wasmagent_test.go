package wasmagent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func servedMethods(t *testing.T) (names []protoreflect.FullName) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("sluice.wasmagent.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				method := file.Services().Get(i).Methods().Get(j)
				tool, ok := proto.GetExtension(method.Options().(*descriptorpb.MethodOptions), mcpv1.E_Tool).(*mcpv1.Tool)
				if ok && !tool.GetUnserved() {
					names = append(names, method.FullName())
				}
			}
		}
		return true
	})
	return names
}

func TestService_RefusesOtherCallers(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, newService(t), rpctest.Options{})
	s.CheckCallers(t, "sluice.wasmagent.v1", servedMethods(t)...)
}

func TestService_ReportsHealth(t *testing.T) {
	t.Parallel()
	s := rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, newService(t), rpctest.Options{})
	s.CheckHealth(t, "wasmagent")
}

// TestAgent_LifecycleFromCreationToTermination creates an agent and prompts it until it has used its last turn. Then it
// resumes, exports, resets and terminates the agent.
func TestAgent_LifecycleFromCreationToTermination(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Instructions: new("be brief"), MaxTurns: new(int32(3))})
	progress, answer, err := c.prompt(id, "emit begun\nwrite notes/a.txt hello\ntodo pending read it\nread ./notes//a.txt")
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(progress) != "[begun]" || answer.GetResponse() != "hello" || !answer.GetFinished() || answer.GetTurnCount() != 1 || answer.GetState() != wasmagentv1.AgentState_AGENT_STATE_IDLE {
		t.Errorf("the progress is %v, and the answer %v", progress, answer)
	}
	if todos := c.todos(id); len(todos) != 1 || todos[0].GetContent() != "read it" || todos[0].GetStatus() != wasmagentv1.TodoStatus_TODO_STATUS_PENDING {
		t.Errorf("the todos are %v", todos)
	}
	if files := c.files(id); fmt.Sprint(files) != "[notes/a.txt]" {
		t.Errorf("the files are %v", files)
	}
	c.mustPrompt(id, "todo completed read it") // the guest remembers the todo of the first turn
	state := c.state(id)
	var messages []string
	for _, m := range state.GetState().GetMessages() {
		messages = append(messages, strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "MESSAGE_ROLE_"))+": "+m.GetContent())
	}
	if want := "system: be brief|user: emit begun\nwrite notes/a.txt hello\ntodo pending read it\nread ./notes//a.txt|assistant: hello|user: todo completed read it|assistant: "; strings.Join(messages, "|") != want {
		t.Errorf("the conversation is %q", messages)
	}
	if u := state.GetUsage(); u.GetFuel() <= 0 || u.GetEffects() != 5 || u.GetFileBytes() != int64(len("notes/a.txt"+"hello")) {
		t.Errorf("the usage is %v", u)
	}
	if is, _ := c.stopStatus(id); is {
		t.Error("the agent is stopped before its last turn")
	}
	if last := c.mustPrompt(id, "say bye"); !last.GetIsStopped() || last.GetStopReason() != wasmagentv1.StopReason_STOP_REASON_MAX_TURNS {
		t.Errorf("the last turn ends with %v", last)
	}
	_, _, err = c.prompt(id, "say more")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_STOPPED")
	_, err = c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "TURNS_SPENT")
	if _, err = c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id, MaxTurns: new(int32(4))}); err != nil {
		t.Fatal(err)
	}
	export, err := c.ExportAgent(c.ctx, &wasmagentv1.ExportAgentRequest{AgentId: id, Depth: wasmagentv1.ExportDepth_EXPORT_DEPTH_STATE.Enum()})
	if err != nil || len(export.GetAgentState().GetMessages()) != 7 || len(export.GetTools()) != 5 || len(export.GetDetail().GetFiles()) != 1 {
		t.Errorf("the agent is exported as %v, %v", export, err)
	}
	if _, err = c.ResetAgent(c.ctx, &wasmagentv1.ResetAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if state = c.state(id); len(state.GetState().GetMessages()) != 1 || state.GetInfo().GetTurnCount() != 0 || state.GetInfo().GetEpoch() != 2 || len(c.todos(id)) != 0 || len(c.files(id)) != 1 {
		t.Errorf("after a reset the agent is %v", state)
	}
	for range 2 { // a second call changes nothing
		resp, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: id})
		if err != nil || resp.GetAgent().GetState() != wasmagentv1.AgentState_AGENT_STATE_TERMINATED || resp.GetAgent().GetRestorableUntil() == nil {
			t.Fatal(resp, err)
		}
	}
	_, _, err = c.prompt(id, "say more")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_TERMINATED")
	if _, err = c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if resumed := c.mustPrompt(id, "say back"); resumed.GetResponse() != "back" {
		t.Errorf("the resumed agent answers %v", resumed)
	}
}

func TestCreateAgent_IsStoppedWithZeroTurns(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{MaxTurns: new(int32(0))})
	if is, why := c.stopStatus(id); !is || why != wasmagentv1.StopReason_STOP_REASON_MAX_TURNS {
		t.Errorf("the agent is stopped: %v, %v", is, why)
	}
}

func TestResumeAgent_RefusedResumeKeepsMaxTurns(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{MaxTurns: new(int32(5))})
	c.mustPrompt(id, "say a")
	c.mustPrompt(id, "say b")
	_, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id, MaxTurns: new(int32(1))})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "TURNS_SPENT")
	if c.mustPrompt(id, "say c").GetIsStopped() {
		t.Error("the agent is stopped after one more turn")
	}
}

// If the guest reads a file that is larger than the maximum size of a result, the guest receives an error, and its turn
// continues.
func TestPrompt_LargeFileIsRefusedToGuest(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	input := `{"path":"a","content":"` + strings.Repeat(strings.Repeat("x", 1023)+`\n`, 3000) + `"}`
	if _, err := c.CallTool(c.ctx, &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, ToolInput: input}); err != nil {
		t.Fatal(err)
	}
	if got := c.mustPrompt(id, "read a\nsay on").GetResponse(); !strings.HasPrefix(got, "line 1: too_large: ") || !strings.HasSuffix(got, "\non") {
		t.Errorf("the agent answers %.200s", got)
	}
}

func TestAgent_IsHiddenFromOtherCallers(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	ana, ben, operator, viewer := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben"), m.withToken(t, "operator"), m.withToken(t, "viewer")
	id := ana.create(new(wasmagentv1.CreateAgentRequest))
	for _, name := range []string{id, "agent-never-given-out"} {
		_, err := ben.GetState(ben.ctx, &wasmagentv1.GetStateRequest{AgentId: name})
		rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
		_, err = ben.StopAgent(ben.ctx, &wasmagentv1.StopAgentRequest{AgentId: name})
		rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
		_, _, err = ben.prompt(name, "say hello")
		rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
		_, err = ben.TerminateAgent(ben.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: name})
		rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
	}
	for name, c := range map[string]client{"ana": ana, "ben": ben, "operator": operator, "viewer": viewer} {
		list, err := c.ListAgents(c.ctx, new(wasmagentv1.ListAgentsRequest))
		if want := map[string]int32{"ben": 0}[name] + map[bool]int32{true: 1}[name != "ben"]; err != nil || list.GetCount() != want || len(list.GetAgents()) != int(want) {
			t.Errorf("%s lists %v, %v", name, list, err)
		}
	}
	if _, err := operator.StopAgent(operator.ctx, &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	_, err := ana.ResumeAgent(ana.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "STOPPED_BY_OPERATOR")
	if _, err := operator.ResumeAgent(operator.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
}

// While a prompt runs, the todos and the stop status can be read, and a second prompt is refused. If the agent is
// stopped, its turn ends at once and is undone.
func TestAgent_IsReadableWhilePromptRuns(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	c.mustPrompt(id, "write kept.txt x")
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.prompt(id, "write undone.txt x\ntodo in_progress wait\nsleep 5m\nsay never")
		ended <- err
	}()
	// The test first waits until the todo is in progress, because the agent also waits during the effects before the
	// sleep.
	eventually.Holds(t, "the todo is in progress", func() bool {
		todos := c.todos(id)
		return len(todos) == 1 && todos[0].GetStatus() == wasmagentv1.TodoStatus_TODO_STATUS_IN_PROGRESS
	})
	eventually.Holds(t, "the agent waits", func() bool { return c.state(id).GetInfo().GetWaiting().GetSince() != nil })
	if is, _ := c.stopStatus(id); is {
		t.Errorf("the agent is stopped while it waits: %v", c.state(id).GetInfo())
	}
	_, _, err := c.prompt(id, "say me too")
	rpctest.WantStatus(t, err, codes.Aborted, "AGENT_BUSY")
	_, err = c.CallTool(c.ctx, &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, ToolInput: `{"path":"a","content":"b"}`})
	rpctest.WantStatus(t, err, codes.Aborted, "AGENT_BUSY")
	if _, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if is, why := c.stopStatus(id); !is || why != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
		t.Errorf("the agent is stopped: %v, %v", is, why)
	}
	rpctest.WantStatus(t, <-ended, codes.FailedPrecondition, "AGENT_STOPPED")
	if files := c.files(id); fmt.Sprint(files) != "[kept.txt]" || len(c.todos(id)) != 0 || c.state(id).GetInfo().GetTurnCount() != 1 {
		t.Errorf("the turn was not undone: %v, %v", files, c.todos(id))
	}
	if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if answer := c.mustPrompt(id, "read kept.txt"); answer.GetResponse() != "x" {
		t.Errorf("the resumed agent answers %v", answer)
	}
}

func TestTerminateAgent_WinsOverStopDuringTurn(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.prompt(id, "sleep 5m")
		ended <- err
	}()
	c.waitUntilSleeping(id)
	if _, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: id}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; rpc.Reason(err) != "AGENT_STOPPED" && rpc.Reason(err) != "AGENT_TERMINATED" { // either may come first
		t.Errorf("the prompt ends with %v", err)
	}
	if state := c.state(id).GetInfo().GetState(); state != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		t.Errorf("the agent is %v", state)
	}
}

func TestPrompt_IsUndoneWhenCancelled(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	ctx, cancel := context.WithCancel(c.ctx)
	impatient := c
	impatient.ctx = ctx
	ended := make(chan error, 1)
	go func() {
		_, _, err := impatient.prompt(id, "write a.txt x\nsleep 5m")
		ended <- err
	}()
	c.waitUntilSleeping(id)
	cancel()
	rpctest.WantStatus(t, <-ended, codes.Canceled, "")
	eventually.Holds(t, "the agent is idle", func() bool { return c.state(id).GetInfo().GetState() == wasmagentv1.AgentState_AGENT_STATE_IDLE })
	if state := c.state(id); len(c.files(id)) != 0 || state.GetInfo().GetTurnCount() != 0 || len(state.GetState().GetMessages()) != 0 {
		t.Errorf("the turn was not undone: %v", state)
	}
}

// If a turn reaches one of its limits, the turn ends and is undone, and the prompt returns the reason. If the guest
// itself reports a failure, the turn is not undone.
func TestPrompt_IsUndoneAtLimits(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	for name, want := range map[string]struct {
		limits *wasmagentv1.Limits
		prompt string
		code   codes.Code
		reason string
		state  wasmagentv1.AgentState
	}{
		"fuel":              {&wasmagentv1.Limits{FuelMillions: new(int32(1))}, "say x", codes.ResourceExhausted, "FUEL_SPENT", wasmagentv1.AgentState_AGENT_STATE_FAILED},
		"memory":            {&wasmagentv1.Limits{MemoryMib: new(int32(1))}, "say x", codes.ResourceExhausted, "MEMORY_SPENT", wasmagentv1.AgentState_AGENT_STATE_FAILED},
		"effects":           {&wasmagentv1.Limits{EffectsPerTurn: new(int32(3))}, strings.Repeat("write a b\n", 4), codes.FailedPrecondition, "AGENT_STOPPED", wasmagentv1.AgentState_AGENT_STATE_STOPPED},
		"time":              {&wasmagentv1.Limits{Deadline: durationpb.New(10 * time.Millisecond)}, strings.Repeat("write a b\n", 900), codes.FailedPrecondition, "AGENT_FAILED", wasmagentv1.AgentState_AGENT_STATE_FAILED},
		"a turn that fails": {nil, "write a b\nfail with this", codes.FailedPrecondition, "TURN_FAILED", wasmagentv1.AgentState_AGENT_STATE_IDLE},
	} {
		id := c.create(&wasmagentv1.CreateAgentRequest{Limits: want.limits})
		_, _, err := c.prompt(id, want.prompt)
		rpctest.WantStatus(t, err, want.code, want.reason)
		info := c.state(id).GetInfo()
		undone := want.reason != "TURN_FAILED"
		if info.GetState() != want.state || undone != (len(c.files(id)) == 0) || undone != (info.GetTurnCount() == 0) {
			t.Errorf("%s: the agent is %v, with the files %v", name, info, c.files(id))
		}
	}
}

// TestPrompt_GuestGetsErrorCodes checks which error codes a guest receives for a model that is not configured, a tool
// that it has no right to, and invalid paths.
func TestPrompt_GuestGetsErrorCodes(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	answer := c.mustPrompt(id, "ask what is up\ntool files read_file {}\nread /etc/passwd\nread ../x")
	for _, want := range []string{"line 1: no_model_configured", "line 2: not_in_manifest", "line 3: path_invalid", "line 4: path_invalid"} {
		if !strings.Contains(answer.GetResponse(), want) {
			t.Errorf("answers %q, want %q", answer.GetResponse(), want)
		}
	}
}

// The pages of a list contain each agent once, from newest to oldest, even if agents are created between two pages.
func TestListAgents_PagesHaveEachAgentOnce(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	var made, seen []string
	for range 5 {
		made = append(made, c.create(&wasmagentv1.CreateAgentRequest{Guest: new("echo")}))
	}
	for token := ""; ; {
		list, err := c.ListAgents(c.ctx, &wasmagentv1.ListAgentsRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list.GetAgents() {
			seen = append(seen, a.GetId())
		}
		if token = list.GetNextPageToken(); token == "" {
			break
		}
		c.create(&wasmagentv1.CreateAgentRequest{Guest: new("echo")})
	}
	slices.Reverse(seen)
	if !slices.Equal(seen, made) {
		t.Errorf("the pages have %v, want %v", seen, made)
	}
	_, err := c.ListAgents(c.ctx, &wasmagentv1.ListAgentsRequest{PageToken: "x"})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
}

// A request is refused if it contains rights or guests that are not supported, or too many conditions.
func TestCreateAgent_RefusesUnsupportedRights(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	for reason, req := range map[string]*wasmagentv1.CreateAgentRequest{
		"RIGHTS_NOT_OFFERED": {Manifest: &wasmagentv1.Manifest{Clock: true}},
	} {
		_, err := c.CreateAgent(c.ctx, req)
		rpctest.WantStatus(t, err, codes.FailedPrecondition, reason)
	}
	wide := toolManifest("t")
	for range 5 {
		right := &wasmagentv1.ToolRight{Server: "demo", Tool: "t"}
		for range 13 {
			right.Conditions = append(right.Conditions, &wasmagentv1.ArgumentCondition{Path: "/x", Test: &wasmagentv1.ArgumentCondition_Equals{Equals: "y"}})
		}
		wide.Tools = append(wide.Tools, right)
	}
	_, err := c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Manifest: wide})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "MANIFEST_TOO_LARGE")
	_, err = c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Guest: new("other")})
	rpctest.WantStatus(t, err, codes.NotFound, "GUEST_UNKNOWN")
}

// Case W10. If a caller's agents have reached the maximum stored size, the caller can't store more, but other callers
// can. Terminated agents are removed to make space.
func TestStoredSize_IsBoundedPerCaller(t *testing.T) {
	t.Parallel()
	small := newRestartableService(t, nil)
	small.close()
	small.cfg.MaxBytesPerPerson = 64 << 20 // a few agents fill it as well as many
	small.start()
	m := small.testService
	ana, ben := m.onBehalfOfUser(t, "ana"), m.onBehalfOfUser(t, "ben")
	input := `{"path":"a","content":"` + strings.Repeat("x", 4<<20-100) + `"}`
	second := `{"path":"b","content":"` + strings.Repeat("x", 4<<20-100) + `"}`
	var made []string
	full := false
	ctx, cancel := context.WithTimeout(ana.ctx, createTime)
	defer cancel()
	for i := 0; i < 100 && !full; i++ {
		resp, err := ana.CreateAgent(ctx, &wasmagentv1.CreateAgentRequest{Guest: new("echo")})
		if full = err != nil; full {
			rpctest.WantStatus(t, err, codes.ResourceExhausted, "STORE_FULL")
			break
		}
		id := resp.GetAgent().GetId()
		made = append(made, id)
		for _, in := range []string{input, second} {
			_, err := ana.CallTool(ctx, &wasmagentv1.CallToolRequest{AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, ToolInput: in})
			if full = err != nil; full {
				rpctest.WantStatus(t, err, codes.ResourceExhausted, "STORE_FULL")
				break
			}
		}
	}
	if !full || len(made) < 7 {
		t.Fatalf("%d agents of 8 MiB, full: %v", len(made), full)
	}
	_, err := ana.CreateAgent(ctx, new(wasmagentv1.CreateAgentRequest))
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "STORE_FULL")
	_, _, err = ana.prompt(made[0], "x")
	rpctest.WantStatus(t, err, codes.ResourceExhausted, "STORE_FULL")
	ben.create(&wasmagentv1.CreateAgentRequest{Guest: new("echo")})
	if _, err := ana.TerminateAgent(ctx, &wasmagentv1.TerminateAgentRequest{AgentId: made[0]}); err != nil {
		t.Fatal(err)
	}
	ana.create(&wasmagentv1.CreateAgentRequest{Guest: new("echo")})
	_, err = ana.GetState(ctx, &wasmagentv1.GetStateRequest{AgentId: made[0]})
	rpctest.WantStatus(t, err, codes.NotFound, "AGENT_UNKNOWN")
}
