package store

import (
	"context"
	"database/sql"
	"fmt"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// CountDescendants returns the number of agents that have the principal anywhere in their delegation chain.
func (s *Store) CountDescendants(ctx context.Context, tenant, subject string) (n int, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		n, err = countDescendants(ctx, tx, tenant, subject)
		return err
	})
	return n, err
}

func countDescendants(ctx context.Context, tx *sqlstore.Tx, tenant, subject string) (n int, err error) {
	return n, tx.QueryRowContext(ctx, `SELECT count(DISTINCT behind.id) FROM behind JOIN agents ON agents.id = behind.id
		WHERE behind.tenant = $1 AND behind.subject = $2 AND (restorable = 0 OR restorable > $3)`, tenant, subject, sqlstore.Micros(tx.Now)).Scan(&n)
}

// Filter selects agents.
type Filter struct {
	Tenant string
	// Principal selects the agents that this principal has created, and the agents whose delegation chain contains the
	// principal. Agents that use the connections of a person are selected only if the principal acts for this person. If
	// Principal is nil, all agents of the tenant are selected.
	Principal *identityv1.Principal
	// States selects the agents that are in one of these states. If States is empty, all agents that are not terminated
	// are selected.
	States []wasmagentv1.AgentState
	// Before is the position of the last agent on the previous page. If Before is 0, the first page is selected.
	Before int64
	Limit  int
}

// where returns an SQL condition for all fields of the filter except Before. It also returns the parameters of the
// condition, which are numbered from $3.
func (f Filter) where() (text string, params []any) {
	text, params = "tenant = $3", []any{f.Tenant}
	if f.Principal != nil {
		text += " AND EXISTS (SELECT 1 FROM behind WHERE behind.id = agents.id AND behind.tenant = $3 AND subject = $4 AND agent = $5) AND (person = '' OR person = $6)"
		params = append(params, f.Principal.GetSubject(), f.Principal.GetAgent(), principal.ActsFor(f.Principal).Subject)
	}
	if len(f.States) == 0 {
		return text + fmt.Sprintf(" AND state <> %d", wasmagentv1.AgentState_AGENT_STATE_TERMINATED), params
	}
	text += " AND state IN ("
	for i, state := range f.States {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(int32(state))
	}
	return text + ")", params
}

// List returns a page of agents, newest first, and the number of agents on all pages. The row of an agent with a
// running turn contains the state before the turn.
func (s *Store) List(ctx context.Context, f Filter) (page []*Row, count int, err error) {
	where, params := f.where()
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		page = nil
		holder, now := s.leaseParams(tx)
		args := append([]any{holder, now}, params...)
		// The condition on the first two parameters is always true. PostgreSQL needs it to infer the types of these
		// parameters.
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM agents WHERE CAST($1 AS TEXT) <> '' AND CAST($2 AS BIGINT) >= 0 AND "+where, args...).Scan(&count); err != nil {
			return err
		}
		text := "SELECT " + columns + " FROM agents WHERE " + where
		if f.Before > 0 {
			args = append(args, f.Before)
			text += fmt.Sprintf(" AND made < $%d", len(args))
		}
		args = append(args, f.Limit)
		return tx.Each(ctx, func(rows *sql.Rows) error {
			row, err := scan(rows)
			page = append(page, row)
			return err
		}, text+fmt.Sprintf(" ORDER BY made DESC LIMIT $%d", len(args)), args...)
	})
	return page, count, err
}

// AbandonedTurns returns the ids of agents that have an unfinished turn that no other process is running.
func (s *Store) AbandonedTurns(ctx context.Context) (ids []string, err error) {
	return s.ids(ctx, func(tx *sqlstore.Tx) (string, []any) {
		holder, now := s.leaseParams(tx)
		return "SELECT id FROM agents WHERE turn > 0 AND (holder = $1 OR held <= $2) ORDER BY made", []any{holder, now}
	})
}

// ExpiredAgents returns the ids of up to 100 agents that have ended and can no longer be resumed, oldest first.
func (s *Store) ExpiredAgents(ctx context.Context) (ids []string, err error) {
	return s.ids(ctx, func(tx *sqlstore.Tx) (string, []any) {
		return "SELECT id FROM agents WHERE restorable > 0 AND restorable <= $1 ORDER BY restorable LIMIT 100", []any{sqlstore.Micros(tx.Now)}
	})
}

// EndedAgents returns the ids of a person's agents that have ended, oldest first.
func (s *Store) EndedAgents(ctx context.Context, person principal.Key) (ids []string, err error) {
	return s.ids(ctx, func(*sqlstore.Tx) (string, []any) {
		return "SELECT id FROM agents WHERE restorable > 0 AND tenant = $1 AND owner = $2 ORDER BY restorable", []any{person.Tenant, person.Subject}
	})
}

func (s *Store) ids(ctx context.Context, query func(tx *sqlstore.Tx) (string, []any)) (ids []string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		ids = nil
		text, params := query(tx)
		return tx.Each(ctx, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		}, text, params...)
	})
	return ids, err
}

// StoredSizes returns the stored size of all agents together, and the stored size of one person's agents. Both are in
// bytes.
func (s *Store) StoredSizes(ctx context.Context, person principal.Key) (all, own int64, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(size), 0) FROM agents WHERE tenant = $1 AND owner = $2", person.Tenant, person.Subject).Scan(&own); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "SELECT coalesce(sum(size), 0) FROM agents").Scan(&all)
	})
	return all, own, err
}
