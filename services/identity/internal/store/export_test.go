package store

import (
	"context"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// LoseChanges sets the version of the tokens to that of a new store.
func (s *Store) LoseChanges(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_changes SET version = 0")
		return err
	})
}
