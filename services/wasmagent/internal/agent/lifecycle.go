package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/inventory"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// Stop stops the agent immediately. The agent refuses prompts until it is resumed. A running turn is undone. Stop
// returns [ErrTerminated] if the agent has ended.
func (a *Agent) Stop(caller Caller, reason string) error {
	return a.forceChange(caller.Context, ErrStopped, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.setStopped()
		next.stoppedByOperator = next.stoppedByOperator || caller.IsOperator
		return lifecycleEvent(next, caller, withReason("stopped", reason)), nil
	})
}

func withReason(what, reason string) string {
	if reason == "" {
		return what
	}
	return what + ": " + reason
}

// Resume makes the agent accept prompts again. If a snapshot id is given, the agent returns to that snapshot. If
// maxTurns is above 0, it becomes the limit for the agent's turns. Resume returns [ErrStoppedByOperator],
// [ErrTerminated], [ErrSnapshotUnknown], [ErrTurnsSpent] or [ErrBusy].
func (a *Agent) Resume(caller Caller, snapshot string, maxTurns int) error {
	return a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		switch {
		case next.stoppedByOperator && !caller.IsOperator:
			return nil, ErrStoppedByOperator
		case next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !time.Now().Before(next.restorableUntil):
			return nil, ErrTerminated
		}
		var from *wasmstorev1.Kept
		if snapshot != "" {
			var err error
			if from, err = a.restoreSnapshot(caller.Context, next, snapshot); err != nil {
				return nil, err
			}
		}
		if maxTurns > 0 {
			next.maxTurns = maxTurns
		}
		if next.turns >= next.maxTurns {
			return nil, ErrTurnsSpent
		}
		next.setIdle()
		if from != nil {
			return beginsEpoch(lifecycleEvent(next, caller, "went back to snapshot "+snapshot), next, from.GetHead()), nil
		}
		return lifecycleEvent(next, caller, "resumed"), nil
	})
}

// restoreSnapshot sets *next to the state in the snapshot with the given id, and starts a new epoch.
func (a *Agent) restoreSnapshot(ctx context.Context, next *state, snapshot string) (*wasmstorev1.Kept, error) {
	found, err := findSnapshot(next.snapshots, snapshot)
	if err != nil {
		return nil, err
	}
	snapshotState, err := a.Store.State(ctx, a.ID, found.GetStateKey(), found.GetSnapshot().GetDigest())
	if err != nil {
		return nil, storeError(err)
	}
	next.restore(snapshotState, a.Files)
	next.epoch++
	next.module = found.GetModuleDigest()
	return found, nil
}

// findSnapshot returns the snapshot with the given id, or [ErrSnapshotUnknown].
func findSnapshot(snapshots []*wasmstorev1.Kept, id string) (*wasmstorev1.Kept, error) {
	for _, k := range snapshots {
		if k.GetSnapshot().GetId() == id {
			return k, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrSnapshotUnknown, id)
}

// Reset clears the messages, the todos and the turn count, and leaves the files unchanged. It starts a new epoch with
// the module that has the given digest. An agent that was stopped explicitly stays stopped.
func (a *Agent) Reset(caller Caller, module string) (epoch int, err error) {
	err = a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.epoch++
		epoch = next.epoch
		next.turns, next.todos, next.memory, next.sequence, next.module = 0, nil, nil, 0, module
		next.resetConversation(a.Instructions)
		if next.stopReason != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
			next.setIdle()
			next.stopIfTurnsSpent()
		}
		return beginsEpoch(lifecycleEvent(next, caller, "reset"), next, nil), nil
	})
	return epoch, err
}

// Migrate starts a new epoch in which the agent runs the module with the given digest. The guest's memory is dropped.
// When the new module starts, it receives the conversation and the todos. Migrate returns the digest of the previous
// module, or "" if the agent already runs the new module.
func (a *Agent) Migrate(caller Caller, module string) (from string, err error) {
	err = a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		from = ""
		switch {
		case next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
			return nil, ErrTerminated
		case next.module == module:
			return nil, nil //nolint:nilnil // there is no change
		}
		from = next.module
		next.epoch++
		next.memory, next.sequence, next.module = nil, 0, module
		if next.status == wasmagentv1.AgentState_AGENT_STATE_FAILED { // the failed guest is replaced
			next.setIdle()
			next.stopIfTurnsSpent()
		}
		return beginsEpoch(lifecycleEvent(next, caller, "migrated from module "+from), next, nil), nil
	})
	return from, err
}

// Terminate ends the agent. The agent can be resumed until [Tombstone] has passed.
func (a *Agent) Terminate(caller Caller) error {
	return a.forceChange(caller.Context, ErrTerminated, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, nil //nolint:nilnil // there is no change
		}
		next.status, next.restorableUntil = wasmagentv1.AgentState_AGENT_STATE_TERMINATED, time.Now().Add(Tombstone)
		return lifecycleEvent(next, caller, "terminated"), nil
	})
}

// Snapshot stores the agent's current state as a snapshot, from which the agent can be resumed or forked. It returns
// [ErrSnapshotsFull] or [ErrTerminated].
func (a *Agent) Snapshot(caller Caller, label string) (snapshot *wasmagentv1.AgentSnapshot, err error) {
	err = a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		switch {
		case next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
			return nil, ErrTerminated
		case len(next.snapshots) >= maxSnapshots:
			return nil, ErrSnapshotsFull
		}
		saved := a.SavedRecord()
		snapshot = &wasmagentv1.AgentSnapshot{
			Id: "snapshot-" + strings.ToLower(rand.Text()), Label: label, Epoch: saved.GetHead().GetEpoch(), Sequence: saved.GetHead().GetSequence(),
			Digest: saved.GetStateDigest(), SizeBytes: saved.GetStateBytes(), CreatedAt: timestamppb.Now(),
		}
		next.snapshots = slices.Concat([]*wasmstorev1.Kept{{Snapshot: snapshot, Head: saved.GetHead(), ModuleDigest: next.module, StateKey: saved.GetStateKey()}}, next.snapshots)
		return lifecycleEvent(next, caller, withReason("kept "+snapshot.GetId(), label)), nil
	})
	return snapshot, err
}

// Grant withdraws the grants with the given ids. If rights is not nil, Grant also adds a grant of these rights, which
// expires at the given time. If the time is zero, the new grant does not expire. Grant returns [ErrGrantUnknown],
// [ErrGrantsFull] or [ErrTerminated].
func (a *Agent) Grant(caller Caller, rights *wasmagentv1.Manifest, until time.Time, withdraw []string, reason string) (grant *wasmagentv1.RightsGrant, err error) {
	err = a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		var changes []string
		next.grants = slices.DeleteFunc(slices.Clone(next.grants), expired(time.Now()))
		for _, id := range withdraw {
			at := slices.IndexFunc(next.grants, func(g *wasmagentv1.RightsGrant) bool { return g.GetId() == id })
			if at < 0 {
				return nil, fmt.Errorf("%w: %s", ErrGrantUnknown, id)
			}
			next.grants = slices.Delete(next.grants, at, at+1)
			changes = append(changes, "took back "+id)
		}
		if rights != nil {
			if len(next.grants) >= maxGrants {
				return nil, ErrGrantsFull
			}
			grant = &wasmagentv1.RightsGrant{Id: "grant-" + strings.ToLower(rand.Text()), Rights: rights, GrantedBy: caller.Subject, GrantedAt: timestamppb.Now(), Reason: reason}
			if !until.IsZero() {
				grant.ExpiresAt = timestamppb.New(until)
			}
			next.grants = append(next.grants, grant)
			changes = append(changes, "granted "+grant.GetId())
		}
		return lifecycleEvent(next, caller, withReason(strings.Join(changes, ", "), reason)), nil
	})
	return grant, err
}

func expired(now time.Time) func(*wasmagentv1.RightsGrant) bool {
	return func(g *wasmagentv1.RightsGrant) bool {
		return g.GetExpiresAt() != nil && !now.Before(g.GetExpiresAt().AsTime())
	}
}

// Fork creates a second agent that continues from the current state of a, or from the snapshot with the given id. The
// fork gets the creator, the manifest and the creation time from s, and everything else from a. limits limits how many
// agents may exist.
//
// If the journal of a is damaged, a fork is possible only from a snapshot that was taken before the damage. Such a fork
// is stopped until it is resumed. Fork returns [ErrSnapshotUnknown], [ErrBusy], [ErrJournalTooLarge],
// [ErrStateDiffers], or an error from the store.
func (a *Agent) Fork(caller Caller, id string, s Spec, snapshot string, limits store.AgentLimits) (out *Agent, err error) {
	err = a.lockForChange(caller.Context, false) // the journal must not change during the fork
	isDamaged := isDamage(err)
	switch {
	case err == nil:
		defer a.unlockChange()
	case !isDamaged || snapshot == "":
		return nil, err
	}
	a.mu.Lock()
	current, saved := a.state, a.savedRecord
	a.mu.Unlock()
	if current.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		return nil, ErrTerminated
	}
	current.restore(current.stateProto(), a.Files) // copies the files
	head := saved.GetHead()
	if snapshot != "" {
		from, err := a.restoreSnapshot(caller.Context, &current, snapshot)
		if err != nil {
			return nil, err
		}
		head = from.GetHead()
	}
	if head.GetBytes() > maxForkedJournal {
		return nil, ErrJournalTooLarge
	}
	covered, err := a.checkForkPoint(caller.Context, head, &current)
	if err != nil {
		return nil, err
	}
	if isDamaged {
		if covered.List == nil {
			return nil, fmt.Errorf("%w: the journal does not record the content of the snapshot", ErrStateDiffers)
		}
		current.setStopped()
	}
	spec := a.Spec
	spec.ID, spec.ForkedFrom, spec.ImportedDigest = id, a.ID, ""
	spec.Creator, spec.Manifest, spec.Files, spec.CreatedAt = s.Creator, s.Manifest, BoundsOf(s.Manifest), s.CreatedAt
	spec.MaxTurns = current.maxTurns
	current.epoch, current.grants, current.snapshots, current.usage = int(head.GetEpoch())+1, nil, nil, usage{}
	out = &Agent{Spec: spec, Deps: a.Deps, state: current, journal: journal{head: head, storedPosition: head.GetPlace(), inventory: covered.List}}
	return out, out.create(caller.Context, beginsEpoch(lifecycleEvent(&current, caller, "forked from "+a.ID), &current, head), a.ID, limits)
}

// checkForkPoint reads the part of the journal that the fork copies. It returns [ErrStateDiffers] if the initial state
// of the fork differs from that part, and [events.ErrChain] if the journal is damaged.
func (a *Agent) checkForkPoint(ctx context.Context, head *wasmstorev1.Head, begin *state) (*coverage, error) {
	c, err := a.readChain(ctx, a.ID, head, nil)
	if err != nil || c.List == nil {
		return c, err
	}
	list, err := inventory.New(a.record(begin), begin.stateProto())
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrStateDiffers, err)
	}
	return c, differenceError(c.List.Compare(list, changingFields...))
}

// changingFields lists the record fields that checkForkPoint does not compare, because they differ between an agent and
// its earlier snapshots.
var changingFields = []string{
	"state", "stop_reason", "failure", "by_operator", "epoch", "max_turns", "restorable_until", "usage", "grants", "snapshots",
}

// Events returns the stored events after a position in the journal. It returns no more events than limit, and no more
// bytes than bytes. more reports whether there are further events.
func (a *Agent) Events(ctx context.Context, after int64, limit, bytes int) (all []*wasmstorev1.StoredEvent, more bool, err error) {
	all, more, err = a.Store.Events(ctx, a.ID, after, limit, bytes)
	return all, more, storeError(err)
}

// Budget returns the key under which the uses of the agent's rights are counted. An agent and all its copies share the
// key, so that copying an agent does not extend its rights.
func (s *Spec) Budget() store.Budget {
	return store.Budget{Tenant: s.Creator.GetTenant(), JournalID: s.JournalID}
}

// CountCall counts a call against the limited rights of an agent and of the agents in its delegation chain, which are
// all in lineage. giveBack reverses the count. If the rights of one agent do not allow the call, nothing is counted.
// CountCall returns [manifest.ErrNotAllowed], [manifest.ErrSpent], or an error from the store.
func CountCall(ctx context.Context, db *store.Store, lineage []*Agent, call ToolCall) (giveBack func(), err error) {
	var requests []store.UseRequest
	for _, member := range lineage {
		found, err := member.Rights().MatchTool(call.Server, call.Tool, call.Arguments, time.Now())
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(found, func(f manifest.Match) bool { return f.MaxUses == 0 }) {
			requests = append(requests, store.UseRequest{Budget: member.Budget(), Matches: found})
		}
	}
	if len(requests) == 0 {
		return func() {}, nil
	}
	counted, err := db.CountUses(ctx, requests)
	if errors.Is(err, manifest.ErrSpent) {
		return nil, fmt.Errorf("%w: %s of %s", err, call.Tool, call.Server)
	}
	if err != nil {
		return nil, storeError(err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
		defer cancel()
		_ = db.UncountUses(ctx, counted) // if this fails, the call stays counted
	}, nil
}
