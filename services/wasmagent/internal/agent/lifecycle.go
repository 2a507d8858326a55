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

// Stop stops the agent at once, until it is resumed. A running turn is undone. Errors: [ErrTerminated].
func (a *Agent) Stop(by By, reason string) error {
	return a.force(by.Context, ErrStopped, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.stopped()
		next.byOperator = next.byOperator || by.Operator
		return lifecycle(next, by, because("stopped", reason)), nil
	})
}

// because appends a reason to a description, if there is a reason.
func because(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// Resume makes the agent take prompts again. If snapshot is not empty, the agent returns to that snapshot. If maxTurns
// is above 0, it becomes the bound on the agent's turns. Errors: [ErrOperator], [ErrTerminated], [ErrSnapshot],
// [ErrTurns], [ErrBusy].
func (a *Agent) Resume(by By, snapshot string, maxTurns int) error {
	return a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		switch {
		case next.byOperator && !by.Operator:
			return nil, ErrOperator
		case next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !time.Now().Before(next.restorable):
			return nil, ErrTerminated
		}
		var from *wasmstorev1.Kept
		if snapshot != "" {
			var err error
			if from, err = a.rewind(by.Context, next, snapshot); err != nil {
				return nil, err
			}
		}
		if maxTurns > 0 {
			next.maxTurns = maxTurns
		}
		if next.turns >= next.maxTurns {
			return nil, ErrTurns
		}
		next.idle()
		if from != nil {
			return begins(lifecycle(next, by, "went back to snapshot "+snapshot), next, from.GetHead()), nil
		}
		return lifecycle(next, by, "resumed"), nil
	})
}

// rewind replaces a state by the state of a snapshot, and begins a new epoch.
func (a *Agent) rewind(ctx context.Context, next *state, snapshot string) (*wasmstorev1.Kept, error) {
	found, err := find(next.kept, snapshot)
	if err != nil {
		return nil, err
	}
	was, err := a.Store.State(ctx, a.ID, found.GetStateKey(), found.GetSnapshot().GetDigest())
	if err != nil {
		return nil, keepError(err)
	}
	next.restore(was, a.Files)
	next.epoch++
	next.module = found.GetModuleDigest()
	return found, nil
}

// find returns a snapshot by its id. Errors: [ErrSnapshot].
func find(kept []*wasmstorev1.Kept, id string) (*wasmstorev1.Kept, error) {
	for _, k := range kept {
		if k.GetSnapshot().GetId() == id {
			return k, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrSnapshot, id)
}

// Reset clears the messages, the todos and the count of turns. It begins a new epoch with the module that has this
// digest. Files stay, and an explicit stop stays in effect.
func (a *Agent) Reset(by By, module string) (epoch int, err error) {
	err = a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.epoch++
		epoch = next.epoch
		next.turns, next.todos, next.memory, next.sequence, next.module = 0, nil, nil, 0, module
		next.greet(a.Instructions)
		if next.stop != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
			next.idle()
			next.spend()
		}
		return begins(lifecycle(next, by, "reset"), next, nil), nil
	})
	return epoch, err
}

// Migrate makes the agent run the module that has this digest, in a new epoch. The memory of the guest is dropped. At
// its start, the new module gets the conversation and the todos. Migrate returns the digest of the previous module, or
// an empty string if the module is the same.
func (a *Agent) Migrate(by By, module string) (from string, err error) {
	err = a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		from = ""
		switch {
		case next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
			return nil, ErrTerminated
		case next.module == module:
			return nil, nil //nolint:nilnil // there is no change
		}
		from = next.module
		next.epoch++
		next.memory, next.sequence, next.module = nil, 0, module
		if next.at == wasmagentv1.AgentState_AGENT_STATE_FAILED { // the failed guest is replaced
			next.idle()
			next.spend()
		}
		return begins(lifecycle(next, by, "migrated from module "+from), next, nil), nil
	})
	return from, err
}

// Terminate ends the agent. The agent can be resumed for [Tombstone].
func (a *Agent) Terminate(by By) error {
	return a.force(by.Context, ErrTerminated, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, nil //nolint:nilnil // there is no change
		}
		next.at, next.restorable = wasmagentv1.AgentState_AGENT_STATE_TERMINATED, time.Now().Add(Tombstone)
		return lifecycle(next, by, "terminated"), nil
	})
}

// Snapshot stores the agent's present state as a snapshot, from which the agent can be resumed or forked. Errors:
// [ErrSnapshots], [ErrTerminated].
func (a *Agent) Snapshot(by By, label string) (kept *wasmagentv1.AgentSnapshot, err error) {
	err = a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		switch {
		case next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
			return nil, ErrTerminated
		case len(next.kept) >= maxKept:
			return nil, ErrSnapshots
		}
		now := a.Saved()
		kept = &wasmagentv1.AgentSnapshot{
			Id: "snapshot-" + strings.ToLower(rand.Text()), Label: label, Epoch: now.GetHead().GetEpoch(), Sequence: now.GetHead().GetSequence(),
			Digest: now.GetStateDigest(), SizeBytes: now.GetStateBytes(), CreatedAt: timestamppb.Now(),
		}
		next.kept = slices.Concat([]*wasmstorev1.Kept{{Snapshot: kept, Head: now.GetHead(), ModuleDigest: next.module, StateKey: now.GetStateKey()}}, next.kept)
		return lifecycle(next, by, because("kept "+kept.GetId(), label)), nil
	})
	return kept, err
}

// Grant withdraws the named grants, and adds a grant of rights unless rights is nil. A zero until means that the grant
// does not expire. Errors: [ErrGrant], [ErrGrants], [ErrTerminated].
func (a *Agent) Grant(by By, rights *wasmagentv1.Manifest, until time.Time, withdraw []string, reason string) (made *wasmagentv1.RightsGrant, err error) {
	err = a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		var said []string
		next.grants = slices.DeleteFunc(slices.Clone(next.grants), expired(time.Now()))
		for _, id := range withdraw {
			at := slices.IndexFunc(next.grants, func(g *wasmagentv1.RightsGrant) bool { return g.GetId() == id })
			if at < 0 {
				return nil, fmt.Errorf("%w: %s", ErrGrant, id)
			}
			next.grants = slices.Delete(next.grants, at, at+1)
			said = append(said, "took back "+id)
		}
		if rights != nil {
			if len(next.grants) >= maxGrants {
				return nil, ErrGrants
			}
			made = &wasmagentv1.RightsGrant{Id: "grant-" + strings.ToLower(rand.Text()), Rights: rights, GrantedBy: by.Actor, GrantedAt: timestamppb.Now(), Reason: reason}
			if !until.IsZero() {
				made.ExpiresAt = timestamppb.New(until)
			}
			next.grants = append(next.grants, made)
			said = append(said, "granted "+made.GetId())
		}
		return lifecycle(next, by, because(strings.Join(said, ", "), reason)), nil
	})
	return made, err
}

// expired returns a function that reports whether a grant has expired.
func expired(now time.Time) func(*wasmagentv1.RightsGrant) bool {
	return func(g *wasmagentv1.RightsGrant) bool {
		return g.GetExpiresAt() != nil && !now.Before(g.GetExpiresAt().AsTime())
	}
}

// Fork creates a second agent that continues from the present state of this one, or from a snapshot if one is named.
// From the spec it takes the creator, the manifest and the time of creation. room bounds the number of agents.
//
// If this agent's journal is damaged, a fork is possible only from a snapshot that is before the damage. Such a fork is
// stopped until it is resumed. Errors: [ErrSnapshot], [ErrBusy], [ErrForked], [ErrDiffers], the store's.
func (a *Agent) Fork(by By, id string, s Spec, snapshot string, room store.Room) (out *Agent, err error) {
	err = a.take(by.Context, false) // the journal must not change meanwhile
	broken := isBroken(err)
	switch {
	case err == nil:
		defer a.give()
	case !broken || snapshot == "":
		return nil, err
	}
	a.mu.Lock()
	now, saved := a.state, a.saved
	a.mu.Unlock()
	if now.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		return nil, ErrTerminated
	}
	now.restore(now.stored(), a.Files) // copies the files
	head := saved.GetHead()
	if snapshot != "" {
		from, err := a.rewind(by.Context, &now, snapshot)
		if err != nil {
			return nil, err
		}
		head = from.GetHead()
	}
	if head.GetBytes() > maxForked {
		return nil, ErrForked
	}
	covered, err := a.forks(by.Context, head, &now)
	if err != nil {
		return nil, err
	}
	if broken {
		if covered.List == nil {
			return nil, fmt.Errorf("%w: the journal does not record the content of the snapshot", ErrDiffers)
		}
		now.stopped()
	}
	spec := a.Spec
	spec.ID, spec.ForkedFrom, spec.Imported = id, a.ID, ""
	spec.Creator, spec.Manifest, spec.Files, spec.Created = s.Creator, s.Manifest, BoundsOf(s.Manifest), s.Created
	spec.MaxTurns = now.maxTurns
	now.epoch, now.grants, now.kept, now.usage = int(head.GetEpoch())+1, nil, nil, usage{}
	out = &Agent{Spec: spec, Deps: a.Deps, state: now, journal: journal{head: head, kept: head.GetPlace(), list: covered.List}}
	return out, out.create(by.Context, begins(lifecycle(&now, by, "forked from "+a.ID), &now, head), a.ID, room)
}

// forks reads the part of the journal that a fork copies, and compares it with the state in which the fork begins.
// Errors: [events.ErrChain], [ErrDiffers].
func (a *Agent) forks(ctx context.Context, head *wasmstorev1.Head, begin *state) (*coverage, error) {
	c, err := a.chain(ctx, a.ID, head, nil)
	if err != nil || c.List == nil {
		return c, err
	}
	list, err := inventory.Of(a.record(begin), begin.stored())
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrDiffers, err)
	}
	return c, differs(c.List.Compare(list, changing...))
}

// changing lists the fields of a record that forks does not compare, because they differ between an agent and its
// earlier snapshots.
var changing = []string{
	"state", "stop_reason", "failure", "by_operator", "epoch", "max_turns", "restorable_until", "usage", "grants", "snapshots",
}

// Events returns stored events of the journal after position behind: at most limit events, and at most bytes bytes.
// more reports whether there are further events.
func (a *Agent) Events(ctx context.Context, behind int64, limit, bytes int) (all []*wasmstorev1.StoredEvent, more bool, err error) {
	all, more, err = a.Store.Events(ctx, a.ID, behind, limit, bytes)
	return all, more, keepError(err)
}

// Budget returns the key of the counters of the agent's rights. All copies of an agent share the key, so that a copy
// has no budget of its own.
func (s *Spec) Budget() store.Budget {
	return store.Budget{Tenant: s.Creator.GetTenant(), Journal: s.JournalID}
}

// Allows counts a call against the bounded rights of an agent and of the agents in its chain, which lineage lists.
// giveBack undoes the counting. If the rights of one agent don't allow the call, nothing is counted. Errors:
// [manifest.ErrNotNamed], [manifest.ErrSpent], the store's.
func Allows(ctx context.Context, at *store.Store, lineage []*Agent, call ToolCall) (giveBack func(), err error) {
	var wishes []store.Wish
	for _, one := range lineage {
		fits, err := one.Rights().Tool(call.Server, call.Tool, call.Arguments, time.Now())
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(fits, func(f manifest.Fit) bool { return f.Most == 0 }) {
			wishes = append(wishes, store.Wish{Budget: one.Budget(), Fits: fits})
		}
	}
	if len(wishes) == 0 {
		return func() {}, nil
	}
	taken, err := at.Take(ctx, wishes)
	if errors.Is(err, manifest.ErrSpent) {
		return nil, fmt.Errorf("%w: %s of %s", err, call.Tool, call.Server)
	}
	if err != nil {
		return nil, keepError(err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
		defer cancel()
		_ = at.GiveBack(ctx, taken) // after an error the call stays counted
	}, nil
}
