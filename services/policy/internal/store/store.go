// Package store stores the policy service's catalog, policy revisions and emergency stops in SQLite or PostgreSQL. Each
// change to a server in the catalog is one serializable transaction, which also increments the version of the store.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

//go:embed migrations/*.sql
var files embed.FS

// ErrNotStored means that the store does not contain the JSON of a tool definition.
var ErrNotStored = errors.New("the text of the definition is not stored")

// Config configures a store.
type Config struct {
	// Source is `sqlite` or the URL of a PostgreSQL database. File is the path of the SQLite database if Source is
	// `sqlite`.
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
	db, err := sqlstore.Open(ctx, sqlstore.Config{Name: "policy", Marker: "changes servers definitions", Source: cfg.Source, File: cfg.File, Migrations: migrations, Log: cfg.Log, Queue: "changes"})
	if err != nil {
		return nil, err
	}
	return &Store{db: db}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.db.Close() }

// ChangedSince returns the current version of the catalog, and the servers that changed after the given version. The
// order of the servers is not specified. Version 0 is the version before the first change. If a server's tools were
// classified with another classifier version or another trust setting, ChangedSince classifies them again in memory.
func (s *Store) ChangedSince(ctx context.Context, known int64, trusted func(server string) bool) (version int64, servers []*catalog.Server, err error) {
	var stale []*catalog.Server
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		servers, stale = nil, nil
		if err := tx.QueryRowContext(ctx, "SELECT version FROM changes").Scan(&version); err != nil || version == known {
			return err
		}
		return tx.Each(ctx, func(rows *sql.Rows) error {
			server, classifier := new(catalog.Server), 0
			var state []byte
			if err := rows.Scan(&state, &classifier); err != nil {
				return err
			}
			if err := json.Unmarshal(state, server); err != nil {
				return fmt.Errorf("read a server of the catalog: %w", err)
			}
			if servers = append(servers, server); classifier != classify.Version || server.Trusted != trusted(server.Name) {
				stale = append(stale, server)
			}
			return nil
		}, "SELECT state, classifier FROM servers WHERE version > $1", known)
	})
	for _, server := range stale {
		if err == nil {
			err = s.reclassifyStored(ctx, server, trusted(server.Name))
		}
	}
	return version, servers, err
}

// reclassifyStored classifies a server's tools again, using their stored definitions.
func (s *Store) reclassifyStored(ctx context.Context, server *catalog.Server, trusted bool) error {
	texts, err := s.Texts(ctx, server.Name)
	if err != nil {
		return err
	}
	reclassify(server, texts, trusted)
	return nil
}

// reclassify classifies a server's tools again. The map texts contains the JSON of the tools' definitions. No other
// goroutine may use the server meanwhile, because reclassify modifies it.
func reclassify(server *catalog.Server, texts map[catalog.Digest]string, trusted bool) {
	server.Trusted = trusted
	for _, t := range server.Tools {
		for i := range t.Definitions {
			if d := &t.Definitions[i]; texts[d.Digest] != "" {
				d.Class = catalog.Classify(texts[d.Digest], trusted)
			}
		}
	}
}

// Texts returns the JSON of all stored definitions from a server.
func (s *Store) Texts(ctx context.Context, server string) (all map[catalog.Digest]string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		all, err = textsOf(ctx, tx, server)
		return err
	})
	return all, err
}

func textsOf(ctx context.Context, tx *sqlstore.Tx, server string) (map[catalog.Digest]string, error) {
	all := make(map[catalog.Digest]string)
	err := tx.Each(ctx, func(rows *sql.Rows) error {
		var digest, text string
		if err := rows.Scan(&digest, &text); err != nil {
			return err
		}
		var d catalog.Digest
		if err := d.UnmarshalText([]byte(digest)); err != nil {
			return err
		}
		all[d] = text
		return nil
	}, "SELECT digest, text FROM definitions WHERE server = $1", server)
	return all, err
}

// Text returns the JSON of one definition from a server, or [ErrNotStored] if the store does not contain it.
func (s *Store) Text(ctx context.Context, server string, digest catalog.Digest) (text string, err error) {
	err = s.db.DoUnqueued(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		text, err = textOf(ctx, tx, server, digest)
		return err
	})
	return text, err
}

func textOf(ctx context.Context, tx *sqlstore.Tx, server string, digest catalog.Digest) (text string, err error) {
	err = tx.QueryRowContext(ctx, "SELECT text FROM definitions WHERE server = $1 AND digest = $2", server, hexOf(digest)).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return "", ErrNotStored
	}
	return text, err
}

func hexOf(d catalog.Digest) string {
	text, _ := d.MarshalText() // MarshalText never returns an error
	return string(text)
}

// A Change describes the change of a server.
type Change struct {
	// Server is the new state of the server. If nothing has changed, it is the same pointer as before.
	Server *catalog.Server
	// New contains the JSON of the definitions to store. Removed contains the digests of the definitions to delete.
	New     map[catalog.Digest]string
	Removed []catalog.Digest
}

// Change calls fn to change the server with the given name, and stores the result. It passes the stored server to fn,
// with tools that are classified by the current version of the classifier. If the server is not stored, fn receives an
// empty server. Change may call fn more than once, so fn must use only its arguments.
//
// Change returns the new server, and the version of the catalog that results. The version is 0 if fn changed nothing.
// The error is an error from fn, or [sqlstore.ErrUnavailable].
func (s *Store) Change(ctx context.Context, name string, trusted bool, fn func(now *sqlstore.Tx, before *catalog.Server, text func(catalog.Digest) (string, error)) (Change, error)) (after *catalog.Server, version int64, err error) {
	err = s.db.Do(ctx, func(ctx context.Context, tx *sqlstore.Tx) error {
		version = 0
		before := &catalog.Server{Name: name, Trusted: trusted}
		var state []byte
		classifier := 0
		switch err := tx.QueryRowContext(ctx, "SELECT state, classifier FROM servers WHERE name = $1", name).Scan(&state, &classifier); {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return err
		default:
			before = new(catalog.Server)
			if err := json.Unmarshal(state, before); err != nil {
				return fmt.Errorf("read a server of the catalog: %w", err)
			}
			if classifier != classify.Version || before.Trusted != trusted { // fn must see classes from the current version of the classifier
				texts, err := textsOf(ctx, tx, name)
				if err != nil {
					return err
				}
				reclassify(before, texts, trusted)
			}
		}
		change, err := fn(tx, before, func(d catalog.Digest) (string, error) { return textOf(ctx, tx, name, d) })
		if err != nil {
			return err
		}
		if after = change.Server; after == before {
			return nil
		}
		version, err = writeChange(ctx, tx, change)
		return err
	})
	return after, version, err
}

func writeChange(ctx context.Context, tx *sqlstore.Tx, change Change) (version int64, err error) {
	name := change.Server.Name
	for digest, text := range change.New {
		if _, err := tx.ExecContext(ctx, "INSERT INTO definitions (server, digest, text) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", name, hexOf(digest), text); err != nil {
			return 0, err
		}
	}
	for _, digest := range change.Removed {
		if _, err := tx.ExecContext(ctx, "DELETE FROM definitions WHERE server = $1 AND digest = $2", name, hexOf(digest)); err != nil {
			return 0, err
		}
	}
	state, err := json.Marshal(change.Server, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("write a server of the catalog: %w", err)
	}
	if err := tx.QueryRowContext(ctx, "UPDATE changes SET version = version + 1 RETURNING version").Scan(&version); err != nil {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO servers (name, version, classifier, state) VALUES ($1, $2, $3, $4)
		ON CONFLICT (name) DO UPDATE SET version = excluded.version, classifier = excluded.classifier, state = excluded.state`,
		name, version, classify.Version, state)
	return version, err
}
