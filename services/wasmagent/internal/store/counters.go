package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
)

// These are the kinds of counters. They count tool calls, model tokens, and model cost in billionths of a US dollar.
const (
	Tools  = "tool"
	Tokens = "tokens"
	Cost   = "cost"
)

// A Budget is the key of the counters that an agent shares with all its copies. Copies are forks of the agent, and
// agents that were imported from its archives.
type Budget struct {
	Tenant string
	// JournalID is the id of the original agent. The journal of each copy begins with the creation of that agent.
	JournalID string
}

// A UseRequest requests one use of an agent's rights. The use is counted against the first right in Matches that is not
// used up.
type UseRequest struct {
	Budget
	Matches []manifest.Match
}

// A CountedUse is a counted use of a right.
type CountedUse struct {
	Budget
	manifest.Match
}

// CountUses counts one use for each request. If the rights for one request are used up, CountUses counts nothing and
// returns [manifest.ErrSpent].
func (s *Store) CountUses(ctx context.Context, requests []UseRequest) (counted []CountedUse, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		counted = nil
		for _, request := range requests {
			use, err := countUse(ctx, tx, request)
			if err != nil {
				return err
			}
			counted = append(counted, use)
		}
		return nil
	})
	return counted, err
}

func countUse(ctx context.Context, tx *sqlstore.Tx, request UseRequest) (CountedUse, error) {
	for _, match := range request.Matches {
		result, err := tx.ExecContext(ctx, `INSERT INTO used (tenant, journal, granted, what, place, used, day) VALUES ($1, $2, $3, $4, $5, 1, $7)
			ON CONFLICT (tenant, journal, granted, what, place) DO UPDATE SET used = used.used + 1, day = $7 WHERE used.used < $6`,
			request.Tenant, request.JournalID, match.Grant, Tools, int64(match.Index), match.MaxUses, dayOf(tx.Now))
		if err != nil {
			return CountedUse{}, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return CountedUse{request.Budget, match}, err
		}
	}
	return CountedUse{}, manifest.ErrSpent
}

// UncountUses reverses the counting of the given uses.
func (s *Store) UncountUses(ctx context.Context, uses []CountedUse) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, u := range uses {
			if _, err := tx.ExecContext(ctx, "UPDATE used SET used = used - 1 WHERE tenant = $1 AND journal = $2 AND granted = $3 AND what = $4 AND place = $5",
				u.Tenant, u.JournalID, u.Grant, Tools, int64(u.Index)); err != nil {
				return err
			}
		}
		return nil
	})
}

// A ModelUse contains the tokens and the cost of a question to a model. They are counted against the first right in
// Matches that is not used up.
type ModelUse struct {
	Budget
	Matches       []manifest.ModelMatch
	Tokens, Nanos int64
}

// HasUnspentRight reports whether at least one of the given rights is not used up.
func (s *Store) HasUnspentRight(ctx context.Context, budget Budget, found []manifest.ModelMatch) (isUnspent bool, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		match, err := firstUnspent(ctx, tx, budget, found)
		isUnspent = match != nil
		return err
	})
	return isUnspent, err
}

// firstUnspent returns the first of the given rights that is not used up, or nil if all are used up.
func firstUnspent(ctx context.Context, tx *sqlstore.Tx, budget Budget, found []manifest.ModelMatch) (*manifest.ModelMatch, error) {
	for _, match := range found {
		isUnspent := true
		for what, most := range map[string]int64{Tokens: match.Tokens, Cost: match.Nanos} {
			var used int64
			err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(used), 0) FROM used WHERE tenant = $1 AND journal = $2 AND granted = $3 AND what = $4 AND place = $5",
				budget.Tenant, budget.JournalID, match.Grant, what, int64(match.Index)).Scan(&used)
			if err != nil {
				return nil, err
			}
			isUnspent = isUnspent && (most < 0 || used < most)
		}
		if isUnspent {
			return &match, nil
		}
	}
	return nil, nil //nolint:nilnil // nil if there is none
}

// CountModelUse counts the tokens and the cost of questions. A question may exceed the limit of its right, because the
// tokens are known only after the answer.
func (s *Store) CountModelUse(ctx context.Context, spends []ModelUse) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, spend := range spends {
			match, err := firstUnspent(ctx, tx, spend.Budget, spend.Matches)
			if err != nil {
				return err
			}
			if match == nil { // other questions have used up the rights since the check
				match = &spend.Matches[0]
			}
			for what, n := range map[string]int64{Tokens: spend.Tokens, Cost: spend.Nanos} {
				if err := addToCounter(ctx, tx, spend.Budget, match.Grant, what, int64(match.Index), n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func addToCounter(ctx context.Context, tx *sqlstore.Tx, budget Budget, grant, what string, place, n int64) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO used (tenant, journal, granted, what, place, used, day) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (tenant, journal, granted, what, place) DO UPDATE SET used = used.used + $6, day = $7`,
		budget.Tenant, budget.JournalID, grant, what, place, n, dayOf(tx.Now))
	return err
}

func dayOf(now time.Time) int64 { return now.Unix() / int64(24*time.Hour/time.Second) }

// counterDays is how many days counters are stored after their last use, once the agent and all its copies have been
// removed. If an archive of the agent is imported within these days, the imported agent continues the counters.
const counterDays = 7

// RemoveUnusedCounters removes the counters of removed agents that have not been used for counterDays.
func (s *Store) RemoveUnusedCounters(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM used WHERE day < $1
			AND NOT EXISTS (SELECT 1 FROM agents WHERE agents.tenant = used.tenant AND agents.journal = used.journal)`, dayOf(tx.Now)-counterDays)
		return err
	})
}

// migrateCounters migrates rows of earlier releases, in which each copy of an agent had its own counters. It sets the
// journal ids of agents, and adds up the counters of all copies of an agent.
func (s *Store) migrateCounters(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		journals := make(map[string]Budget)
		err := tx.Each(ctx, func(rows *sql.Rows) error {
			var id string
			var text []byte
			r := new(wasmstorev1.Record)
			if err := errors.Join(rows.Scan(&id, &text), proto.Unmarshal(text, r)); err != nil {
				return err
			}
			journals[id] = Budget{r.GetCreator().GetTenant(), r.GetJournalId()}
			return nil
		}, "SELECT id, record FROM agents WHERE journal = '' OR EXISTS (SELECT 1 FROM spent WHERE spent.id = agents.id)")
		if err != nil {
			return err
		}
		for id, budget := range journals {
			if err := migrateAgentCounters(ctx, tx, id, budget); err != nil {
				return err
			}
		}
		return nil
	})
}

func migrateAgentCounters(ctx context.Context, tx *sqlstore.Tx, id string, budget Budget) error {
	if _, err := tx.ExecContext(ctx, "UPDATE agents SET journal = $2 WHERE id = $1", id, budget.JournalID); err != nil {
		return err
	}
	type row struct {
		grant, what string
		place, used int64
	}
	var all []row
	err := tx.Each(ctx, func(rows *sql.Rows) error {
		var counter row
		err := rows.Scan(&counter.grant, &counter.what, &counter.place, &counter.used)
		all = append(all, counter)
		return err
	}, "SELECT granted, what, place, used FROM spent WHERE id = $1", id)
	for _, counter := range all {
		if err == nil {
			err = addToCounter(ctx, tx, budget, counter.grant, counter.what, counter.place, counter.used)
		}
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "DELETE FROM spent WHERE id = $1", id)
	}
	return err
}
