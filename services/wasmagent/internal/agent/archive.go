package agent

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/archive"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/inventory"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// ErrABI means that the guest uses another version of the ABI, or that the archive's fuel was counted by another
// version of the fuel meter.
var ErrABI = errors.New("the agent's guest uses another version of the ABI, or of the fuel meter")

// ExportDetail returns those details of the stored agent that only exports contain.
func (a *Agent) ExportDetail() (*wasmagentv1.ExportedState, error) {
	list, err := a.ListFiles("")
	if err != nil {
		return nil, err
	}
	saved := a.SavedRecord()
	return &wasmagentv1.ExportedState{
		Manifest: a.Manifest, Grants: a.Grants(), Limits: a.Limits.Proto(), Usage: a.Usage(), Files: FileProtos(list), MeterVersion: wasmmeter.MeterVersion, AbiVersion: engine.ABIVersion,
		Sequence: saved.GetHead().GetSequence(), JournalHead: saved.GetHead().GetHash(), StateDigest: saved.GetStateDigest(),
	}, nil
}

// FileProtos converts a list of files to protobuf messages for responses.
func FileProtos(list []files.File) (out []*wasmagentv1.AgentFile) {
	for _, f := range list {
		out = append(out, &wasmagentv1.AgentFile{Path: f.Path, SizeBytes: int32(f.Size), Sha256: f.SHA256, ModifiedAt: timestamppb.New(f.Modified)})
	}
	return out
}

// ArchiveContent returns the content of an archive of the stored agent. It first checks that the agent matches its
// whole journal. If allowUncovered is true, the journal need not record the content of all parts of the agent.
// ArchiveContent returns [archive.ErrLarge], [events.ErrChain], [ErrStateDiffers], [ErrNotCovered] unless
// allowUncovered is true, or an error from the store.
func (a *Agent) ArchiveContent(ctx context.Context, allowUncovered bool) (c archive.Content, err error) {
	if err := a.Damage(); err != nil {
		return c, err
	}
	saved, state, err := a.readStored(ctx)
	if err != nil {
		return c, err
	}
	if saved.GetHead().GetBytes() > archive.MaxBytes {
		return c, archive.ErrLarge
	}
	c = archive.Content{State: state, Agent: &wasmagentv1.ArchivedAgent{
		Agent: RecordProto(saved), Origin: saved.GetOrigin(), GuestSequence: state.GetSequence(), MaxTurns: saved.GetMaxTurns(), StoppedByOperator: saved.GetByOperator(),
		Detail: &wasmagentv1.ExportedState{
			Manifest: saved.GetManifest(), Grants: saved.GetGrants(), Limits: saved.GetLimits(), Usage: saved.GetUsage(), MeterVersion: wasmmeter.MeterVersion, AbiVersion: engine.ABIVersion,
			Sequence: saved.GetHead().GetSequence(), JournalHead: saved.GetHead().GetHash(), StateDigest: saved.GetStateDigest(),
		},
	}}
	list := files.New(a.Files)
	for _, f := range state.GetFiles() {
		list.Restore(f.GetPath(), f.GetContent(), f.GetModifiedAt().AsTime())
	}
	all, err := list.List("")
	if err != nil {
		return c, err
	}
	c.Agent.Detail.Files = FileProtos(all)
	covered, err := a.readChain(ctx, a.ID, saved.GetHead(), func(e *wasmstorev1.StoredEvent) error {
		c.Events = append(c.Events, e)
		return nil
	})
	if err == nil {
		err = differenceError(covered.compare(saved, state))
	}
	switch {
	case isDamage(err):
		a.markDamaged(err)
		return c, errors.Join(a.Damage(), a.invalidateOthers(ctx))
	case err == nil && len(covered.notCovered()) > 0 && !allowUncovered:
		err = ErrNotCovered
	}
	return c, err
}

// Import creates an agent from the content of an archive. The agent is stopped until it is resumed. The agent's id,
// creator, guest, manifest, limits, creation time and archive digest come from s, and everything else comes from the
// archive. limits limits how many agents may exist. Import returns [archive.ErrInvalid], [ErrABI], or an error from the
// store.
func Import(caller Caller, s Spec, c archive.Content, deps Deps, limits store.AgentLimits) (*Agent, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	exported, detail := c.Agent.GetAgent(), c.Agent.GetDetail()
	if detail.GetAbiVersion() != engine.ABIVersion || detail.GetMeterVersion() != wasmmeter.MeterVersion {
		return nil, ErrABI
	}
	covered, err := archiveCoverage(c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", archive.ErrInvalid, err)
	}
	head := covered.head
	s.Template, s.ModuleDigest, s.Instructions, s.Config = exported.GetTemplate(), exported.GetModuleDigest(), exported.GetConfig().GetInstructions(), exported.GetConfig()
	s.MaxTurns, s.Files = int(c.Agent.GetMaxTurns()), BoundsOf(s.Manifest)
	s.JournalID, s.JournalCreatedAt = exported.GetJournalId(), c.Agent.GetOrigin().AsTime()
	if s.Config == nil {
		s.Config = new(wasmagentv1.AgentConfig)
	}
	current := newState(&s)
	current.restore(c.State, s.Files)
	if err := checkImportedState(&current, c.State, s.Files); err != nil {
		return nil, err
	}
	current.epoch = int(head.GetEpoch()) + 1
	current.setStopped()
	current.stoppedByOperator = c.Agent.GetStoppedByOperator()
	a := &Agent{Spec: s, Deps: deps, state: current, journal: journal{head: head, waiting: c.Events, inventory: covered.List}}
	return a, a.create(caller.Context, beginsEpoch(lifecycleEvent(&current, caller, "imported from archive "+s.ImportedDigest+", where it was "+exported.GetId()), &current, head), "", limits)
}

// archiveCoverage checks the journal in an archive. It returns an error if the other parts of the archive differ from
// the journal.
func archiveCoverage(c archive.Content) (*coverage, error) {
	exported, detail := c.Agent.GetAgent(), c.Agent.GetDetail()
	covered := &coverage{head: events.EmptyHead(exported.GetJournalId())}
	for _, e := range c.Events {
		if err := covered.add(e); err != nil {
			return nil, err
		}
	}
	if covered.head.GetHash() != detail.GetJournalHead() || covered.List != nil && covered.stored.GetPlace() != covered.head.GetPlace() {
		return nil, errors.New("the last events of its journal are missing")
	}
	if covered.List == nil {
		return covered, nil
	}
	r := &wasmstorev1.Record{
		Template: exported.GetTemplate(), Guest: exported.GetGuest(), ModuleDigest: exported.GetModuleDigest(), Instructions: exported.GetConfig().GetInstructions(), Config: exported.GetConfig(),
		Manifest: detail.GetManifest(), Grants: detail.GetGrants(), Limits: detail.GetLimits(), CreatedAt: exported.GetCreatedAt(), JournalId: exported.GetJournalId(), Origin: c.Agent.GetOrigin(),
		ForkedFrom: exported.GetForkedFrom(), ImportedDigest: exported.GetImportedDigest(), State: exported.GetState(), StopReason: exported.GetStopReason(), Failure: exported.GetFailure(),
		ByOperator: c.Agent.GetStoppedByOperator(), Epoch: exported.GetEpoch(), Turns: exported.GetTurnCount(), MaxTurns: c.Agent.GetMaxTurns(), FileCount: exported.GetFileCount(),
		RestorableUntil: exported.GetRestorableUntil(), Usage: detail.GetUsage(), Id: exported.GetId(),
	}
	list, err := inventory.New(r, c.State)
	if err != nil {
		return nil, err
	}
	// archives do not contain these fields
	return covered, differenceError(covered.List.Compare(list, "creator", "file_bytes", "memory_bytes", "snapshots"))
}

// checkImportedState returns an error if an imported state exceeds the limits of this installation. The error is
// [archive.ErrInvalid], [ErrTodosInvalid] or [ErrTodosFull].
func checkImportedState(current *state, stored *wasmstorev1.State, bounds files.Bounds) error {
	if len(current.messages) > maxMessages || current.messageBytes > maxMessageBytes {
		return fmt.Errorf("%w: its conversation is too long", archive.ErrInvalid)
	}
	if err := checkTodos(current.todos); err != nil {
		return fmt.Errorf("%w: its todos: %w", archive.ErrInvalid, err)
	}
	if current.files.Bytes() > bounds.Bytes || current.files.Count() > bounds.Count {
		return fmt.Errorf("%w: its files exceed the bounds", archive.ErrInvalid)
	}
	for _, f := range stored.GetFiles() {
		if path, err := files.Path(f.GetPath()); err != nil || path != f.GetPath() || !utf8.ValidString(f.GetContent()) {
			return fmt.Errorf("%w: the file %.64q", archive.ErrInvalid, f.GetPath())
		}
	}
	return nil
}
