package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
)

const (
	// sharedTable is the name that the version table had in earlier releases. In these releases, only one service of
	// the mesh could use a database.
	sharedTable = "goose_db_version"
	// adoptLock is the advisory lock that a service holds while it adopts sharedTable.
	adoptLock = 0x736c7569636501
)

var nameGrammar = regexp.MustCompile(`^[a-z]{1,32}$`)

func isName(name string) bool { return nameGrammar.MatchString(name) }

// versionTable returns the name of the PostgreSQL table that contains the version of a service's tables.
func versionTable(cfg Config) string { return sharedTable + "_" + cfg.Name }

// ownsTables is a query that reports whether the current schema contains the shared table and all tables of the
// service's first migration. Other schemas on the search path are ignored, so the version table of another application
// is not changed.
const ownsTables = `SELECT NOT bool_or(name = $1) AND bool_or(name = $2) AND $3::text[] <@ array_agg(name)
	FROM (SELECT tablename::text AS name FROM pg_tables WHERE schemaname = current_schema() UNION SELECT '') AS tables`

// adoptVersionTable renames the version table of an earlier release if it belongs to the tables of this service. It
// does not copy the table, because a process of the earlier release would then read the old table and would not notice
// that the service's tables are newer.
func adoptVersionTable(ctx context.Context, db *sql.DB, cfg Config) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after Commit
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(adoptLock)); err != nil {
		return err
	}
	var ours bool
	err = tx.QueryRowContext(ctx, ownsTables, versionTable(cfg), sharedTable, strings.Fields(cfg.Marker)).Scan(&ours)
	if err != nil || !ours {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("ALTER TABLE %s RENAME TO %s", sharedTable, versionTable(cfg))); err != nil {
		return fmt.Errorf("rename the table of versions: %w", err)
	}
	return tx.Commit()
}
