package store

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
)

// What is used of rights.
const (
	Tools  = "tool"
	Tokens = "tokens"
	Cost   = "cost"
)

// A Wish is a use of one of an agent's rights: of the first that has something left.
type Wish struct {
	ID   string
	Fits []rights.Fit
}

// A Use is a use that was taken.
type Use struct {
	ID string
	rights.Fit
}

// Take takes all wishes out of what is left, or none. Errors: [rights.ErrSpent].
func (s *Store) Take(ctx context.Context, wishes []Wish) (taken []Use, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		taken = nil
		for _, wish := range wishes {
			use, err := take(ctx, tx, wish)
			if err != nil {
				return err
			}
			taken = append(taken, use)
		}
		return nil
	})
	return taken, err
}

func take(ctx context.Context, tx *sqlstore.Tx, wish Wish) (Use, error) {
	for _, fit := range wish.Fits {
		result, err := tx.ExecContext(ctx, `INSERT INTO spent (id, granted, what, place, used) VALUES ($1, $2, $3, $4, 1)
			ON CONFLICT (id, granted, what, place) DO UPDATE SET used = spent.used + 1 WHERE spent.used < $5`,
			wish.ID, fit.Grant, Tools, int64(fit.Place), fit.Most)
		if err != nil {
			return Use{}, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return Use{wish.ID, fit}, err
		}
	}
	return Use{}, rights.ErrSpent
}

// GiveBack gives uses back.
func (s *Store) GiveBack(ctx context.Context, uses []Use) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, u := range uses {
			if _, err := tx.ExecContext(ctx, "UPDATE spent SET used = used - 1 WHERE id = $1 AND granted = $2 AND what = $3 AND place = $4",
				u.ID, u.Grant, Tools, int64(u.Place)); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Spend is what a question to a model took, of one of an agent's rights: of the first that has
// something left.
type Spend struct {
	ID            string
	Fits          []rights.ModelFit
	Tokens, Nanos int64
}

// HasLeft tells whether one of an agent's rights to ask a model has something left.
func (s *Store) HasLeft(ctx context.Context, id string, fits []rights.ModelFit) (left bool, err error) {
	err = s.db.Look(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		at, err := firstLeft(ctx, tx, id, fits)
		left = at != nil
		return err
	})
	return left, err
}

// firstLeft is the first right that has something left; nil for none.
func firstLeft(ctx context.Context, tx *sqlstore.Tx, id string, fits []rights.ModelFit) (*rights.ModelFit, error) {
	for _, fit := range fits {
		left := true
		for what, most := range map[string]int64{Tokens: fit.Tokens, Cost: fit.Nanos} {
			var used int64
			err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(used), 0) FROM spent WHERE id = $1 AND granted = $2 AND what = $3 AND place = $4", id, fit.Grant, what, int64(fit.Place)).Scan(&used)
			if err != nil {
				return nil, err
			}
			left = left && (most < 0 || used < most)
		}
		if left {
			return &fit, nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// SpendModel notes what questions took. A right may be overdrawn by one question: what it takes
// is known behind it.
func (s *Store) SpendModel(ctx context.Context, spends []Spend) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		for _, spend := range spends {
			fit, err := firstLeft(ctx, tx, spend.ID, spend.Fits)
			if err != nil {
				return err
			}
			if fit == nil { // others asked meanwhile
				fit = &spend.Fits[0]
			}
			for what, n := range map[string]int64{Tokens: spend.Tokens, Cost: spend.Nanos} {
				if _, err := tx.ExecContext(ctx, `INSERT INTO spent (id, granted, what, place, used) VALUES ($1, $2, $3, $4, $5)
					ON CONFLICT (id, granted, what, place) DO UPDATE SET used = spent.used + $5`, spend.ID, fit.Grant, what, int64(fit.Place), n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
