package store

import (
	"context"
	"math"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// TerminateDamaged terminates an agent whose state or journal is damaged. This is the only change that is possible for
// a damaged agent. The agent can be resumed until the given time.
func (s *Store) TerminateDamaged(ctx context.Context, id string, until time.Time) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, turn = 0, state = $2, restorable = $3 WHERE id = $1 AND restorable = 0",
			id, int64(wasmagentv1.AgentState_AGENT_STATE_TERMINATED), sqlstore.Micros(until))
		return err
	})
}

// maxRemovedEvents limits how many events one transaction removes. The number is small because other calls must wait
// for the transaction.
const maxRemovedEvents = 500

// RemoveAgent removes an agent that has ended, including its journal and its states. If onlyExpired is true,
// RemoveAgent removes the agent only if the agent can no longer be resumed. ended is false if the agent was not
// removed, for example because it was resumed.
func (s *Store) RemoveAgent(ctx context.Context, id string, onlyExpired bool) (ended bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		before := int64(math.MaxInt64)
		if onlyExpired {
			before = sqlstore.Micros(tx.Now)
		}
		result, err := tx.ExecContext(ctx, "UPDATE agents SET version = version + 1, restorable = 1, size = 0 WHERE id = $1 AND restorable > 0 AND restorable <= $2", id, before)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		ended = n > 0
		return err
	})
	if err != nil || !ended {
		return false, err
	}
	for more := true; more; {
		err := s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
			result, err := tx.ExecContext(ctx, "DELETE FROM events WHERE id = $1 AND place IN (SELECT place FROM events WHERE id = $1 ORDER BY place LIMIT $2)", id, maxRemovedEvents)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			if more = n == maxRemovedEvents; more || err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "DELETE FROM agents WHERE id = $1", id)
			return err
		})
		if err != nil {
			return true, err
		}
	}
	return true, s.states.removeExcept(ctx, id, nil)
}
