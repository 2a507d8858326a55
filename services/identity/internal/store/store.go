// Package store stores tokens in SQLite or PostgreSQL. The identity service uses this package.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"sync/atomic"
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

// ErrLost means that the store contains an older version of the tokens than this process has read earlier. This can
// happen if the database was restored from a backup.
var ErrLost = errors.New("the store has lost changes of the tokens: a revocation may be lost; restart the identity service to use the stored tokens")

// Store is an open store. It is safe for concurrent use.
type Store struct {
	db *sqlstore.DB
	// seen is the newest version of the tokens that this process has read or written.
	seen atomic.Int64
}

// Open opens a store, and creates or migrates its tables. The caller must close the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "identity", Marker: "identity_tokens identity_changes identity_replicas identity_keys", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log, Queue: "identity_changes"})
	if err != nil {
		return nil, err
	}
	return &Store{db: db}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// ImportState is the state of the import of tokens from the policy service. Earlier versions of the policy service
// stored these tokens.
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

// Import stores the tokens that earlier versions of the policy service stored. It does nothing if they were imported
// before.
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
		return s.nextVersion(ctx, tx)
	})
}

// replicaLife is how long a replica is stored after it was last seen.
const replicaLife = 24 * time.Hour

// ReportReplica stores the newest version of the tokens that is in use by all services that are connected to the given
// replica.
func (s *Store) ReportReplica(ctx context.Context, id string, version int64) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		now := sqlstore.Micros(tx.Now)
		_, err := tx.ExecContext(ctx, `INSERT INTO identity_replicas (id, version, seen) VALUES ($1, $2, $3)
			ON CONFLICT (id) DO UPDATE SET version = excluded.version, seen = excluded.seen`, id, version, now)
		return err
	})
}

// ForgetReplicas deletes the replicas that have not reported a version for a day.
func (s *Store) ForgetReplicas(ctx context.Context) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM identity_replicas WHERE seen < $1", sqlstore.Micros(tx.Now.Add(-replicaLife)))
		return err
	})
}

// SaveKeys stores the keys of an issuer that have just been fetched. source identifies the source of the keys.
func (s *Store) SaveKeys(ctx context.Context, source string, keys []byte) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO identity_keys (source, keys, fetched) VALUES ($1, $2, $3)
			ON CONFLICT (source) DO UPDATE SET keys = excluded.keys, fetched = excluded.fetched`, source, keys, sqlstore.Micros(tx.Now))
		return err
	})
}

// Keys returns the stored keys of an issuer, and when they were fetched. If there are no stored keys, the time is zero.
func (s *Store) Keys(ctx context.Context, source string) (keys []byte, fetched time.Time, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		var at int64
		err := tx.QueryRowContext(ctx, "SELECT keys, fetched FROM identity_keys WHERE source = $1", source).Scan(&keys, &at)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		fetched = sqlstore.Time(at)
		return err
	})
	return keys, fetched, err
}

// LeaveReplica records that a replica stops. It sets the time at which the replica was last seen to the given duration
// before now. A revocation then waits for the replica only as long as services that were connected to the replica may
// still accept tokens.
func (s *Store) LeaveReplica(ctx context.Context, id string, before time.Duration) error {
	return s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE identity_replicas SET seen = $1 WHERE id = $2", sqlstore.Micros(tx.Now.Add(-before)), id)
		return err
	})
}

// readVersion returns the version of the tokens.
func readVersion(ctx context.Context, tx *sqlstore.Tx) (version int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT version FROM identity_changes").Scan(&version)
	return version, err
}

// see records that this process has read or written a version. It is called only after a commit, because a version that
// was rolled back never existed.
func (s *Store) see(version int64) {
	for {
		seen := s.seen.Load()
		if version <= seen || s.seen.CompareAndSwap(seen, version) {
			return
		}
	}
}

// nextVersion increases the version of the tokens. The version is at least the current time in microseconds, so that no
// version is used twice, even if the database loses the last changes. The transaction must be queued, because otherwise
// it could see an older version than this process has seen in the meantime. nextVersion returns [ErrLost] if this process
// has seen a newer version.
func (s *Store) nextVersion(ctx context.Context, tx *sqlstore.Tx) error {
	version, err := readVersion(ctx, tx)
	if err != nil {
		return err
	}
	if version < s.seen.Load() {
		return ErrLost
	}
	next := max(version+1, sqlstore.Micros(tx.Now))
	tx.OnCommit(func() { s.see(next) })
	_, err = tx.ExecContext(ctx, "UPDATE identity_changes SET version = $1", next)
	return err
}

// OlderReplicas returns the ids of the replicas that have reported a version older than the given version, and were
// last seen less than seenWithin ago.
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
