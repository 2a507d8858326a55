package agent

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/models"
)

const (
	// maxMessages limits the number of messages in a conversation, and maxMessageBytes limits their total size. If a
	// limit is exceeded, the oldest messages are dropped, except the instructions.
	maxMessages     = 1000
	maxMessageBytes = 4 << 20
	// maxTodos limits the number of entries in a todo list, and maxTodoBytes limits the size of an entry, in bytes.
	maxTodos     = 1000
	maxTodoBytes = 4096
	maxSnapshots = 32
	maxGrants    = 64
	// maxForkedJournal limits the size, in bytes, of a journal that can be copied to a fork.
	maxForkedJournal = 64 << 20
)

// state is the mutable part of an agent. Except for the files, which a turn may modify, a value behind a pointer is
// never modified but only replaced.
type state struct {
	status     wasmagentv1.AgentState
	stopReason wasmagentv1.StopReason
	failure    *wasmagentv1.Failure
	epoch      int
	turns      int
	maxTurns   int
	messages   []*wasmagentv1.Message
	// messageBytes is the total size of the messages, in bytes.
	messageBytes int
	todos        []*wasmagentv1.Todo
	files        *files.Files
	usage        usage
	// sequence is the number of the newest envelope that the guest has received, counted from 1. It is 0 if the guest
	// has received none.
	sequence int64
	// module is the digest of the guest's module. memory is the snapshot of the guest, or nil before the guest's first
	// turn.
	module string
	memory []byte
	// grants contains the rights that were granted in addition to the manifest. snapshots is sorted, newest first.
	grants            []*wasmagentv1.RightsGrant
	snapshots         []*wasmstorev1.Kept
	stoppedByOperator bool
	// restorableUntil is until when a terminated agent can be resumed. It is zero if the agent has not ended.
	restorableUntil time.Time
}

type usage struct {
	fuel, effects, denied     int64
	inputTokens, outputTokens int64
	// nanos is the total cost of model usage, in billionths of a US dollar.
	nanos int64
}

// newState returns the state of an agent that has not run yet.
func newState(s *Spec) state {
	out := state{status: wasmagentv1.AgentState_AGENT_STATE_IDLE, epoch: 1, maxTurns: s.MaxTurns, files: files.New(s.Files), module: s.ModuleDigest}
	out.resetConversation(s.Instructions)
	out.stopIfTurnsSpent()
	return out
}

// maxHandoverBytes limits the total size, in bytes, of the messages that a guest receives when it starts after a
// migration.
const maxHandoverBytes = 256 << 10

// startMessages returns the newest messages of the conversation, which a new guest receives when it starts. It returns
// nil unless the agent was migrated from another module.
func (s *state) startMessages() (out []abi.Message) {
	bytes := 0
	for _, m := range slices.Backward(s.messages) {
		role := map[wasmagentv1.MessageRole]string{wasmagentv1.MessageRole_MESSAGE_ROLE_USER: "user", wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT: "assistant"}[m.GetRole()]
		if bytes += len(m.GetContent()); bytes > maxHandoverBytes {
			break
		}
		if role != "" {
			out = append(out, abi.Message{Role: role, Content: m.GetContent()})
		}
	}
	slices.Reverse(out)
	for len(out) > 0 && out[0].Role != "user" { // models require that the first message is a user's
		out = out[1:]
	}
	return out
}

func (s *state) startTodos() (out []abi.TodoItem) {
	for _, todo := range s.todos {
		out = append(out, abi.TodoItem{Content: todo.GetContent(), Status: enum.Name(todo.GetStatus())})
	}
	return out
}

// resetConversation starts a new conversation that begins with the instructions.
func (s *state) resetConversation(instructions string) {
	s.messages, s.messageBytes = nil, 0
	if instructions != "" {
		s.addMessage(wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM, instructions)
	}
}

// addMessage adds a message to the conversation, and drops the oldest messages if the conversation is too long.
func (s *state) addMessage(role wasmagentv1.MessageRole, text string) {
	s.messages = append(slices.Clip(s.messages), &wasmagentv1.Message{Role: role, Content: text})
	s.messageBytes += len(text)
	first := 0
	if s.messages[0].GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM {
		first = 1
	}
	for len(s.messages) > first+1 && (len(s.messages) > maxMessages || s.messageBytes > maxMessageBytes) {
		s.messageBytes -= len(s.messages[first].GetContent())
		s.messages = slices.Concat(s.messages[:first], s.messages[first+1:])
	}
}

// stopIfTurnsSpent stops the agent if it has used all of its turns.
func (s *state) stopIfTurnsSpent() {
	if s.turns >= s.maxTurns {
		s.status, s.stopReason = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_TURNS
	}
}

// setStopped sets the state to stopped, as if a caller had stopped the agent.
func (s *state) setStopped() {
	s.status, s.stopReason, s.failure = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_EXPLICIT, nil
}

// setIdle sets the state to idle, in which the agent accepts prompts.
func (s *state) setIdle() {
	s.status, s.stopReason, s.failure = wasmagentv1.AgentState_AGENT_STATE_IDLE, wasmagentv1.StopReason_STOP_REASON_UNSPECIFIED, nil
	s.stoppedByOperator, s.restorableUntil = false, time.Time{}
}

func (s *state) refusesPrompts() bool {
	return s.status == wasmagentv1.AgentState_AGENT_STATE_STOPPED || s.status == wasmagentv1.AgentState_AGENT_STATE_FAILED ||
		s.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// record encodes the agent with the given state for storage. The result does not contain the head of the journal.
func (a *Agent) record(s *state) *wasmstorev1.Record {
	r := &wasmstorev1.Record{
		Id: a.ID, Creator: a.Creator, Template: a.Template, Guest: a.Guest, ModuleDigest: s.module, Instructions: a.Instructions, Config: a.Config, Manifest: a.Manifest,
		Grants: s.grants, Limits: a.Limits.Proto(), CreatedAt: timestamppb.New(a.CreatedAt), JournalId: a.JournalID, Origin: timestamppb.New(a.JournalCreatedAt), ForkedFrom: a.ForkedFrom, ImportedDigest: a.ImportedDigest,
		State: s.status, StopReason: s.stopReason, Failure: s.failure, ByOperator: s.stoppedByOperator, Epoch: int32(s.epoch), Turns: int32(s.turns), MaxTurns: int32(s.maxTurns),
		FileCount: int32(s.files.Count()), FileBytes: int64(s.files.Bytes()), Usage: s.usage.proto(), MemoryBytes: int64(len(s.memory)), Kept: s.snapshots,
	}
	if !s.restorableUntil.IsZero() {
		r.RestorableUntil = timestamppb.New(s.restorableUntil)
	}
	if a.savedRecord != nil {
		r.StateDigest, r.StateBytes, r.StateKey = a.savedRecord.GetStateDigest(), a.savedRecord.GetStateBytes(), a.savedRecord.GetStateKey()
	}
	return r
}

// stateProto encodes those fields of the state that a turn can change.
func (s *state) stateProto() *wasmstorev1.State {
	out := &wasmstorev1.State{Memory: s.memory, Sequence: s.sequence, Turns: int32(s.turns), Messages: s.messages, Todos: s.todos}
	for f := range s.files.All() {
		out.Files = append(out.Files, &wasmstorev1.File{Path: f.Path, Content: f.Content, ModifiedAt: timestamppb.New(f.Modified)})
	}
	return out
}

// restore sets those fields of the state that a turn can change to the stored values.
func (s *state) restore(stored *wasmstorev1.State, bounds files.Bounds) {
	s.memory, s.sequence, s.turns, s.messages, s.todos = stored.GetMemory(), stored.GetSequence(), int(stored.GetTurns()), stored.GetMessages(), stored.GetTodos()
	s.messageBytes = 0
	for _, m := range s.messages {
		s.messageBytes += len(m.GetContent())
	}
	s.files = files.New(bounds)
	for _, f := range stored.GetFiles() {
		s.files.Restore(f.GetPath(), f.GetContent(), f.GetModifiedAt().AsTime())
	}
}

func specAndState(r *wasmstorev1.Record) (Spec, state) {
	spec := Spec{
		ID: r.GetId(), Creator: r.GetCreator(), Template: r.GetTemplate(), Guest: r.GetGuest(), ModuleDigest: r.GetModuleDigest(), Instructions: r.GetInstructions(),
		MaxTurns: int(r.GetMaxTurns()), Config: r.GetConfig(), Limits: limitsOf(r.GetLimits()), Manifest: r.GetManifest(), CreatedAt: r.GetCreatedAt().AsTime(),
		ForkedFrom: r.GetForkedFrom(), ImportedDigest: r.GetImportedDigest(), JournalID: r.GetJournalId(), JournalCreatedAt: r.GetOrigin().AsTime(),
	}
	s := state{
		status: r.GetState(), stopReason: r.GetStopReason(), failure: r.GetFailure(), epoch: int(r.GetEpoch()), turns: int(r.GetTurns()), maxTurns: int(r.GetMaxTurns()),
		usage: usageOf(r.GetUsage()), module: r.GetModuleDigest(), grants: r.GetGrants(), snapshots: r.GetKept(), stoppedByOperator: r.GetByOperator(),
	}
	if r.GetRestorableUntil() != nil {
		s.restorableUntil = r.GetRestorableUntil().AsTime()
	}
	return spec, s
}

// Proto converts the limits to a protobuf message for responses.
func (l Limits) Proto() *wasmagentv1.Limits {
	return &wasmagentv1.Limits{
		MemoryMib: new(int32(l.Memory >> 20)), FuelMillions: new(int32(l.Fuel / 1_000_000)), EffectsPerTurn: new(int32(l.Effects)), Deadline: durationpb.New(l.Deadline),
	}
}

func limitsOf(l *wasmagentv1.Limits) Limits {
	return Limits{
		Memory: int64(l.GetMemoryMib()) << 20, Fuel: int64(l.GetFuelMillions()) * 1_000_000, Effects: int(l.GetEffectsPerTurn()), Deadline: l.GetDeadline().AsDuration(),
	}
}

func (u usage) proto() *wasmagentv1.Usage {
	return &wasmagentv1.Usage{Fuel: u.fuel, Effects: u.effects, Denied: u.denied, InputTokens: u.inputTokens, OutputTokens: u.outputTokens, Cost: models.Dollars(u.nanos)}
}

func usageOf(u *wasmagentv1.Usage) usage {
	nanos, err := models.Nanos(u.GetCost())
	if err != nil { // this program writes only valid amounts
		nanos = 0
	}
	return usage{u.GetFuel(), u.GetEffects(), u.GetDenied(), u.GetInputTokens(), u.GetOutputTokens(), nanos}
}
