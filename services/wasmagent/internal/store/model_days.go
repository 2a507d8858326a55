package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// Amount is an amount of model usage: a number of tokens, and a cost in billionths of a US dollar.
type Amount struct{ Tokens, Nanos int64 }

// ReserveDay adds an amount to a person's model usage on a day, unless the usage has already reached the limit. The
// limit for the cost applies only if the amount has a cost. ReserveDay returns the previous usage, and whether it has
// added the amount. Days are counted from 1970-01-01 UTC.
func (s *Store) ReserveDay(ctx context.Context, person principal.Key, day int64, amount, limit Amount) (used Amount, ok bool, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		// This statement locks the row until the transaction ends.
		if _, err := tx.ExecContext(ctx, `INSERT INTO model_days (tenant, person, day, tokens, nanos) VALUES ($1, $2, $3, 0, 0)
			ON CONFLICT (tenant, person, day) DO UPDATE SET tokens = model_days.tokens`, person.Tenant, person.Subject, day); err != nil {
			return err
		}
		used = Amount{}
		err := tx.QueryRowContext(ctx, "SELECT tokens, nanos FROM model_days WHERE tenant = $1 AND person = $2 AND day = $3", person.Tenant, person.Subject, day).Scan(&used.Tokens, &used.Nanos)
		if err != nil {
			return err
		}
		if ok = used.Tokens < limit.Tokens && (amount.Nanos == 0 || used.Nanos < limit.Nanos); !ok {
			return nil
		}
		return addDay(ctx, tx, person, day, amount)
	})
	return used, ok, err
}

// AddDay adds an amount to a person's model usage on a day. The amount can be negative.
func (s *Store) AddDay(ctx context.Context, person principal.Key, day int64, amount Amount) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error { return addDay(ctx, tx, person, day, amount) })
}

func addDay(ctx context.Context, tx *sqlstore.Tx, person principal.Key, day int64, amount Amount) error {
	_, err := tx.ExecContext(ctx, "UPDATE model_days SET tokens = tokens + $4, nanos = nanos + $5 WHERE tenant = $1 AND person = $2 AND day = $3",
		person.Tenant, person.Subject, day, amount.Tokens, amount.Nanos)
	return err
}

// Day returns a person's model usage on a day.
func (s *Store) Day(ctx context.Context, person principal.Key, day int64) (used Amount, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		used = Amount{}
		err := tx.QueryRowContext(ctx, "SELECT tokens, nanos FROM model_days WHERE tenant = $1 AND person = $2 AND day = $3", person.Tenant, person.Subject, day).Scan(&used.Tokens, &used.Nanos)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return used, err
}

// RemoveDays removes the recorded model usage of all days before the given day.
func (s *Store) RemoveDays(ctx context.Context, before int64) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM model_days WHERE day < $1", before)
		return err
	})
}
