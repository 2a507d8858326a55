package store

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// AgentLimits limits how many agents may exist.
type AgentLimits struct {
	// Total limits how many agents may exist in total. PerPerson limits how many agents may belong to one person.
	Total, PerPerson int
	// Descendants maps the subject of each agent in the new agent's delegation chain to the maximum number of descendants
	// of that agent.
	Descendants map[string]int
}

// Create stores a new agent and returns its position in the order in which agents were created. If from is the id of
// another agent, Create copies that agent's events with positions below c.FirstPosition to the new agent. If from is
// empty, it copies nothing. Create returns [ErrAgentsFull] or [ErrDescendantsFull].
func (s *Store) Create(ctx context.Context, c Change, from string, limits AgentLimits) (made int64, err error) {
	caller := c.Record.GetCreator()
	owner := principal.Person(caller)
	if err := s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error { return limits.check(ctx, tx, caller) }); err != nil {
		return 0, err // the limits are checked first, so that no state is written for a refused agent
	}
	if err := s.putState(ctx, &c); err != nil {
		return 0, err
	}
	text, err := proto.Marshal(c.Record)
	if err != nil {
		return 0, fmt.Errorf("write an agent: %w", err)
	}
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if err := limits.check(ctx, tx, caller); err != nil { // other agents might have been created since the first check
			return err
		}
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(made), 0) + 1 FROM agents").Scan(&made); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO agents (id, made, version, tenant, owner, state, restorable, size, turn, holder, held, record, journal, person)
			VALUES ($1, $2, 1, $3, $4, $5, 0, $6, 0, '', 0, $7, $8, $9)`, c.ID, made, caller.GetTenant(), owner.Subject, int64(c.Record.GetState()), size(c.Record), text, c.Record.GetJournalId(), principal.ActsFor(caller).Subject); err != nil {
			return err
		}
		for _, member := range append([]*identityv1.Principal{caller}, caller.GetChain()...) {
			if _, err := tx.ExecContext(ctx, "INSERT INTO behind (id, tenant, subject, agent) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
				c.ID, caller.GetTenant(), member.GetSubject(), member.GetAgent()); err != nil {
				return err
			}
		}
		if from != "" {
			if _, err := tx.ExecContext(ctx, "INSERT INTO events (id, place, event) SELECT $1, place, event FROM events WHERE id = $2 AND place < $3", c.ID, from, c.FirstPosition); err != nil {
				return err
			}
		}
		return appendEvents(ctx, tx, c.ID, c.FirstPosition, c.Events)
	})
	if err != nil && !errors.Is(err, ErrUnavailable) { // after ErrUnavailable, the agent might have been stored
		err = errors.Join(err, s.states.removeExcept(ctx, c.ID, nil))
	}
	return made, err
}

// check returns [ErrAgentsFull] or [ErrDescendantsFull] if the limits do not allow the caller to create one more agent.
func (r AgentLimits) check(ctx context.Context, tx *sqlstore.Tx, caller *identityv1.Principal) error {
	owner := principal.Person(caller)
	var all, own int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents").Scan(&all); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE tenant = $1 AND owner = $2", owner.Tenant, owner.Subject).Scan(&own); err != nil {
		return err
	}
	if all >= r.Total || own >= r.PerPerson {
		return ErrAgentsFull
	}
	for subject, most := range r.Descendants {
		n, err := countDescendants(ctx, tx, caller.GetTenant(), subject)
		if err != nil {
			return err
		}
		if n >= most {
			return ErrDescendantsFull
		}
	}
	return nil
}
