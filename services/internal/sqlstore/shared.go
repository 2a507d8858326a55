package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"
)

const (
	// sharedTable is the table of versions of releases in which a database could belong to only one role.
	sharedTable = "goose_db_version"
	// adoptLock is the advisory lock under which a role takes that table over.
	adoptLock = 0x736c7569636501
)

var nameGrammar = regexp.MustCompile(`^[a-z]{1,32}$`)

func isName(name string) bool { return nameGrammar.MatchString(name) }

// versionTable returns the table that contains the version of a role's tables in PostgreSQL.
func versionTable(cfg Config) string { return sharedTable + "_" + cfg.Name }

// isOurs reports whether the current schema, and no other on the search path, contains the shared table and all
// tables of the role's first migration: another application's table of versions is not touched.
const isOurs = `SELECT NOT bool_or(name = $1) AND bool_or(name = $2) AND $3::text[] <@ array_agg(name)
	FROM (SELECT tablename::text AS name FROM pg_tables WHERE schemaname = current_schema() UNION SELECT '') AS tables`

// adopt renames the table of versions of an earlier release if it belongs to the role's own tables. A copy would not
// do: a program of that release would still read the old table, and not notice that the tables are newer than it
// knows.
func adopt(ctx context.Context, db *sql.DB, cfg Config) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(adoptLock)); err != nil {
		return err
	}
	var ours bool
	err = tx.QueryRowContext(ctx, isOurs, versionTable(cfg), sharedTable, strings.Fields(cfg.Marker)).Scan(&ours)
	if err != nil || !ours {
		return err
	}
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("ALTER TABLE %s RENAME TO %s", sharedTable, versionTable(cfg))); err != nil {
		return fmt.Errorf("take over the table of versions: %w", err)
	}
	return tx.Commit()
}
