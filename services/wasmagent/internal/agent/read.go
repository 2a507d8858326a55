package agent

import (
	"slices"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
)

// Proto converts the agent to a protobuf message for responses.
func (a *Agent) Proto() *wasmagentv1.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := RecordProto(a.record(&a.state))
	out.Model, _ = a.Host.Model(a, "")
	if a.turn != nil {
		out.Waiting = a.turn.waiting
	}
	if a.runsElsewhere {
		out.State, out.Waiting = wasmagentv1.AgentState_AGENT_STATE_RUNNING, a.elsewhereWaiting
		if a.elsewhereWaiting != nil {
			out.State = wasmagentv1.AgentState_AGENT_STATE_WAITING
		}
	}
	return out
}

// RecordProto converts the record of a stored agent to a protobuf message for responses.
func RecordProto(r *wasmstorev1.Record) *wasmagentv1.Agent {
	current := r.GetState()
	return &wasmagentv1.Agent{
		Id: r.GetId(), State: current, Config: r.GetConfig(), Model: r.GetConfig().GetModel(), TurnCount: r.GetTurns(), FileCount: r.GetFileCount(),
		IsStopped: (&state{status: current}).refusesPrompts(), CreatedAt: r.GetCreatedAt(), StopReason: r.GetStopReason(), Failure: r.GetFailure(), Epoch: r.GetEpoch(),
		Template: r.GetTemplate(), Guest: r.GetGuest(), ModuleDigest: r.GetModuleDigest(), Creator: r.GetCreator().GetSubject(), Depth: int32(len(r.GetCreator().GetChain())),
		JournalId: r.GetJournalId(), ForkedFrom: r.GetForkedFrom(), ImportedDigest: r.GetImportedDigest(), RestorableUntil: r.GetRestorableUntil(),
	}
}

// CurrentMaxTurns returns the current limit for the agent's turns.
func (a *Agent) CurrentMaxTurns() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.maxTurns
}

// Conversation returns the messages of the agent.
func (a *Agent) Conversation() *wasmagentv1.Conversation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &wasmagentv1.Conversation{Messages: slices.Clone(a.messages), TurnCount: int32(a.turns), Stopped: a.refusesPrompts()}
}

// Todos returns the todo list.
func (a *Agent) Todos() []*wasmagentv1.Todo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.todos
}

// Usage returns the resources that the agent has used.
func (a *Agent) Usage() *wasmagentv1.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.usage.proto()
	out.MemoryBytes, out.FileBytes = int64(len(a.memory)), int64(a.files.Bytes())
	return out
}

// ListFiles returns the agent's files in the directory with the given path. If the path is empty, it returns all files.
func (a *Agent) ListFiles(below string) ([]files.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files.List(below)
}

// ReadFiles calls do with the agent's files, which do must not change. It returns [ErrTerminated], [ErrBusy] if a turn
// is running, or the error that do returned.
func (a *Agent) ReadFiles(do func(f *files.Files) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return ErrTerminated
	case a.turn != nil, a.runsElsewhere:
		return ErrBusy
	}
	return do(a.files)
}

// Snapshots returns the agent's snapshots, newest first.
func (a *Agent) Snapshots() (out []*wasmagentv1.AgentSnapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.snapshots {
		out = append(out, k.GetSnapshot())
	}
	return out
}

// Grants returns the grants that have not expired.
func (a *Agent) Grants() []*wasmagentv1.RightsGrant {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.grants), expired(time.Now()))
}

// SavedRecord returns the record that was last stored.
func (a *Agent) SavedRecord() *wasmstorev1.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.savedRecord
}

// EventsStored returns a channel that is closed as soon as this process has stored further events of the journal.
func (a *Agent) EventsStored() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.eventsStored == nil {
		a.eventsStored = make(chan struct{})
	}
	return a.eventsStored
}
