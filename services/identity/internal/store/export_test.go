package store

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

// LoseChanges sets the version of the tokens to that of a new store.
func (s *Store) LoseChanges(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_changes SET version = 0")
		return err
	})
}

// MoveBack moves the times of all connections into the past.
func (s *Store) MoveBack(ctx context.Context, by time.Duration) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE identity_connections SET connected = connected - $1, refreshed = refreshed - $1,
			deleted = CASE WHEN deleted = 0 THEN 0 ELSE deleted - $1 END`, by.Microseconds())
		return err
	})
}

// ConnectAsBefore inserts a connection like a replica of the version before the migration 00007.
func (s *Store) ConnectAsBefore(ctx context.Context, server string) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO identity_connections (server, generation, sealed, issuer, scopes, has_refresh_token, connected, connected_by_tenant, connected_by,
			refreshed, expires, login_required, problem, lease, lease_until) VALUES ($1, 1, $2, $3, '', 0, $4, '', '', $4, 0, 0, '', '', 0)`,
			server, []byte("first 1"), "https://as.example.com", sqlstore.Micros(tx.Now))
		return err
	})
}
