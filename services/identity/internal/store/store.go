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

// ImportState says what has happened to the tokens that the policy service stored in earlier versions.
type ImportState int64

const (
	// NotImported means that the tokens were not copied yet.
	NotImported ImportState = iota
	// Imported means that the tokens were copied, and that the policy service may still have them.
	Imported
	// Moved means that the policy service has deleted the tokens.
	Moved
)

// ImportState returns the state of the import.
func (s *Store) ImportState(ctx context.Context) (state ImportState, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT imported FROM identity_changes").Scan(&state)
	})
	return state, err
}

// FinishImport records that the policy service has deleted the tokens.
func (s *Store) FinishImport(ctx context.Context) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_changes SET imported = $1", Moved)
		return err
	})
}

// Import stores the tokens that the policy service stored in earlier versions, unless that was done before.
func (s *Store) Import(ctx context.Context, tokens []Token) error {
	return s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		var state ImportState
		if err := tx.QueryRowContext(ctx, "SELECT imported FROM identity_changes").Scan(&state); err != nil || state != NotImported {
			return err
		}
		for i := range tokens {
			if err := insertToken(ctx, tx, &tokens[i]); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "UPDATE identity_changes SET imported = $1", Imported); err != nil {
			return err
		}
		return nextVersion(ctx, tx)
	})
}

// replicaLife is the time for which a replica that is no longer seen is stored.
const replicaLife = 24 * time.Hour

// ReportReplica stores the newest version of the tokens that all services that are connected to a replica use.
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

// LeaveReplica records that a replica stops, as if the replica had last been seen the given time ago. Services that
// were connected to the replica accept tokens for a short time after its end.
func (s *Store) LeaveReplica(ctx context.Context, id string, before time.Duration) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_replicas SET seen = $1 WHERE id = $2", sqlstore.Micros(tx.Now.Add(-before)), id)
		return err
	})
}

// nextVersion increases the version of the tokens. The version is at least the time in microseconds, so that a version
// is not used twice if the database loses the last changes.
func nextVersion(ctx context.Context, tx *sqlstore.Tx) error {
	_, err := tx.ExecContext(ctx, "UPDATE identity_changes SET version = CASE WHEN version < $1 THEN $1 ELSE version + 1 END", sqlstore.Micros(tx.Now))
	return err
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
