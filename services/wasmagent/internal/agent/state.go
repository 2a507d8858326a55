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
	// maxMessages and maxMessageBytes bound a conversation: the oldest go, but never the
	// instructions.
	maxMessages     = 1000
	maxMessageBytes = 4 << 20
	// maxTodos and maxTodo bound a todo list, in entries and bytes of one.
	maxTodos = 1000
	maxTodo  = 4096
	// maxKept and maxGrants are how many snapshots and grants it may have.
	maxKept   = 32
	maxGrants = 64
	// maxForked is how large a journal may be that a fork begins with, in bytes.
	maxForked = 64 << 20
)

// state is all of an agent that changes. What it points to is replaced, never changed, but for
// the files of a turn.
type state struct {
	at       wasmagentv1.AgentState
	stop     wasmagentv1.StopReason
	failure  *wasmagentv1.Failure
	epoch    int
	turns    int
	maxTurns int
	messages []*wasmagentv1.Message
	// talk is how much the messages have, in bytes.
	talk  int
	todos []*wasmagentv1.Todo
	files *files.Files
	usage usage
	// sequence is that of the newest envelope that its guest was given.
	sequence int64
	// module is the digest of its guest's module, and memory all that its guest is; nil before
	// its first turn.
	module string
	memory []byte
	// grants are rights beside its manifest, and kept its snapshots, the newest first.
	grants []*wasmagentv1.RightsGrant
	kept   []*wasmstorev1.Kept
	// byOperator says that an operator stopped it.
	byOperator bool
	// restorable is until when it can be brought back; zero where it has not ended.
	restorable time.Time
}

type usage struct {
	fuel, effects, denied     int64
	inputTokens, outputTokens int64
	// nanos is what models cost, in billionths of a US dollar.
	nanos int64
}

// newState is that of an agent that has not run yet.
func newState(s *Spec) state {
	out := state{at: wasmagentv1.AgentState_AGENT_STATE_IDLE, epoch: 1, maxTurns: s.MaxTurns, files: files.New(s.Files), module: s.Digest}
	out.greet(s.Instructions)
	out.spend()
	return out
}

// maxHanded is how much of a conversation a guest is told as it starts, in bytes.
const maxHanded = 256 << 10

// told is the conversation that a guest is told as it starts: the newest of what was said before. Only a guest that takes
// over from another module finds any.
func (s *state) told() (out []abi.Said) {
	bytes := 0
	for _, m := range slices.Backward(s.messages) {
		role := map[wasmagentv1.MessageRole]string{wasmagentv1.MessageRole_MESSAGE_ROLE_USER: "user", wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT: "assistant"}[m.GetRole()]
		if bytes += len(m.GetContent()); bytes > maxHanded {
			break
		}
		if role != "" {
			out = append(out, abi.Said{Role: role, Content: m.GetContent()})
		}
	}
	slices.Reverse(out)
	for len(out) > 0 && out[0].Role != "user" { // models want a prompt first
		out = out[1:]
	}
	return out
}

// listed are the todos that a guest is told as it starts.
func (s *state) listed() (out []abi.TodoItem) {
	for _, todo := range s.todos {
		out = append(out, abi.TodoItem{Content: todo.GetContent(), Status: enum.Name(todo.GetStatus())})
	}
	return out
}

// greet begins a conversation.
func (s *state) greet(instructions string) {
	s.messages, s.talk = nil, 0
	if instructions != "" {
		s.say(wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM, instructions)
	}
}

// say adds to the conversation.
func (s *state) say(role wasmagentv1.MessageRole, text string) {
	s.messages = append(slices.Clip(s.messages), &wasmagentv1.Message{Role: role, Content: text})
	s.talk += len(text)
	first := 0
	if s.messages[0].GetRole() == wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM {
		first = 1
	}
	for len(s.messages) > first+1 && (len(s.messages) > maxMessages || s.talk > maxMessageBytes) {
		s.talk -= len(s.messages[first].GetContent())
		s.messages = slices.Concat(s.messages[:first], s.messages[first+1:])
	}
}

// spend stops an agent that has taken its last turn.
func (s *state) spend() {
	if s.turns >= s.maxTurns {
		s.at, s.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_TURNS
	}
}

// stopped makes it stopped by somebody.
func (s *state) stopped() {
	s.at, s.stop, s.failure = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_EXPLICIT, nil
}

// idle makes it take prompts.
func (s *state) idle() {
	s.at, s.stop, s.failure = wasmagentv1.AgentState_AGENT_STATE_IDLE, wasmagentv1.StopReason_STOP_REASON_UNSPECIFIED, nil
	s.byOperator, s.restorable = false, time.Time{}
}

// takesNone reports whether it takes no prompts.
func (s *state) takesNone() bool {
	return s.at == wasmagentv1.AgentState_AGENT_STATE_STOPPED || s.at == wasmagentv1.AgentState_AGENT_STATE_FAILED ||
		s.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// record is an agent as it is kept, in a state, without the head of its journal.
func (a *Agent) record(s *state) *wasmstorev1.Record {
	r := &wasmstorev1.Record{
		Id: a.ID, Creator: a.Creator, Template: a.Template, Guest: a.Guest, ModuleDigest: s.module, Instructions: a.Instructions, Config: a.Config, Manifest: a.Manifest,
		Grants: s.grants, Limits: a.Limits.Proto(), CreatedAt: timestamppb.New(a.Created), JournalId: a.JournalID, Origin: timestamppb.New(a.Origin), ForkedFrom: a.ForkedFrom, ImportedDigest: a.Imported,
		State: s.at, StopReason: s.stop, Failure: s.failure, ByOperator: s.byOperator, Epoch: int32(s.epoch), Turns: int32(s.turns), MaxTurns: int32(s.maxTurns),
		FileCount: int32(s.files.Count()), FileBytes: int64(s.files.Bytes()), Usage: s.usage.proto(), MemoryBytes: int64(len(s.memory)), Kept: s.kept,
	}
	if !s.restorable.IsZero() {
		r.RestorableUntil = timestamppb.New(s.restorable)
	}
	if a.saved != nil {
		r.StateDigest, r.StateBytes, r.StateKey = a.saved.GetStateDigest(), a.saved.GetStateBytes(), a.saved.GetStateKey()
	}
	return r
}

// stored is what a turn changes, as it is kept.
func (s *state) stored() *wasmstorev1.State {
	out := &wasmstorev1.State{Memory: s.memory, Sequence: s.sequence, Turns: int32(s.turns), Messages: s.messages, Todos: s.todos}
	for f := range s.files.All() {
		out.Files = append(out.Files, &wasmstorev1.File{Path: f.Path, Content: f.Content, ModifiedAt: timestamppb.New(f.Modified)})
	}
	return out
}

// restore makes it what was stored.
func (s *state) restore(from *wasmstorev1.State, bounds files.Bounds) {
	s.memory, s.sequence, s.turns, s.messages, s.todos = from.GetMemory(), from.GetSequence(), int(from.GetTurns()), from.GetMessages(), from.GetTodos()
	s.talk = 0
	for _, m := range s.messages {
		s.talk += len(m.GetContent())
	}
	s.files = files.New(bounds)
	for _, f := range from.GetFiles() {
		s.files.Restore(f.GetPath(), f.GetContent(), f.GetModifiedAt().AsTime())
	}
}

// of is an agent as it was kept.
func of(r *wasmstorev1.Record) (Spec, state) {
	spec := Spec{
		ID: r.GetId(), Creator: r.GetCreator(), Template: r.GetTemplate(), Guest: r.GetGuest(), Digest: r.GetModuleDigest(), Instructions: r.GetInstructions(),
		MaxTurns: int(r.GetMaxTurns()), Config: r.GetConfig(), Limits: limitsOf(r.GetLimits()), Manifest: r.GetManifest(), Created: r.GetCreatedAt().AsTime(),
		ForkedFrom: r.GetForkedFrom(), Imported: r.GetImportedDigest(), JournalID: r.GetJournalId(), Origin: r.GetOrigin().AsTime(),
	}
	s := state{
		at: r.GetState(), stop: r.GetStopReason(), failure: r.GetFailure(), epoch: int(r.GetEpoch()), turns: int(r.GetTurns()), maxTurns: int(r.GetMaxTurns()),
		usage: usageOf(r.GetUsage()), module: r.GetModuleDigest(), grants: r.GetGrants(), kept: r.GetKept(), byOperator: r.GetByOperator(),
	}
	if r.GetRestorableUntil() != nil {
		s.restorable = r.GetRestorableUntil().AsTime()
	}
	return spec, s
}

// Proto are limits as they are shown.
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
	if err != nil { // it was not written here
		nanos = 0
	}
	return usage{u.GetFuel(), u.GetEffects(), u.GetDenied(), u.GetInputTokens(), u.GetOutputTokens(), nanos}
}
