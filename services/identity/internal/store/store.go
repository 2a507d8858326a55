// Package store stores tokens in SQLite or PostgreSQL. The identity service uses this package.
package store

import (
	"context"
	"database/sql"
	"embed"
	"io/fs"
	"log/slog"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
)

//go:embed migrations/*.sql
var files embed.FS

// Config configures a store.
type Config struct {
	// Source is `sqlite`, or the URL of a PostgreSQL database. File is the path of the SQLite database.
	Source, File string
	// Log receives messages about migrations. It is required.
	Log *slog.Logger
}

// Store is an open store. It is safe for concurrent use.
type Store struct{ db *sqlstore.DB }

// Open opens a store, and creates or migrates its tables. The caller must close the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "identity", Marker: "identity_tokens identity_changes identity_replicas", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log, Queue: "identity_changes"})
	if err != nil {
		return nil, err
	}
	return &Store{db: db}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// IsImported reports whether the tokens of the policy service were imported.
func (s *Store) IsImported(ctx context.Context) (done bool, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT imported = 1 FROM identity_changes").Scan(&done)
	})
	return done, err
}

// Import stores the tokens that the policy service stored in earlier versions, unless that was done before.
func (s *Store) Import(ctx context.Context, tokens []Token) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		done := false
		if err := tx.QueryRowContext(ctx, "SELECT imported = 1 FROM identity_changes").Scan(&done); err != nil || done {
			return err
		}
		for i := range tokens {
			if err := insertToken(ctx, tx, &tokens[i]); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "UPDATE identity_changes SET version = version + 1, imported = 1")
		return err
	})
}

// replicaLife is the time for which a replica that is no longer seen is stored.
const replicaLife = 24 * time.Hour

// ReportReplica stores the version of the tokens that all services use that are connected to a replica.
func (s *Store) ReportReplica(ctx context.Context, id string, version int64) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		now := sqlstore.Micros(tx.Now)
		if _, err := tx.ExecContext(ctx, `INSERT INTO identity_replicas (id, version, seen) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET version = excluded.version, seen = excluded.seen`, id, version, now); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM identity_replicas WHERE seen < $1", sqlstore.Micros(tx.Now.Add(-replicaLife)))
		return err
	})
}

// RemoveReplica removes a replica that stops.
func (s *Store) RemoveReplica(ctx context.Context, id string) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM identity_replicas WHERE id = $1", id)
		return err
	})
}

// OlderReplicas returns the ids of the replicas that were seen within the given time and have reported a version older
// than the given version.
func (s *Store) OlderReplicas(ctx context.Context, version int64, seenWithin time.Duration) (ids []string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		ids = nil
		return tx.Each(ctx, func(rows *sql.Rows) error {
			var id string
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
			return nil
		}, "SELECT id FROM identity_replicas WHERE version < $1 AND seen >= $2 ORDER BY id", version, sqlstore.Micros(tx.Now.Add(-seenWithin)))
	})
	return ids, err
}
