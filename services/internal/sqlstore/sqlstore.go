package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

// SQLite is the source that means a file in the role's own data folder.
const SQLite = "sqlite"

// ErrAway means that the store could not be reached, or that its answer to a commit was lost: then it is unknown
// whether the change was made, and a repetition finds out.
var ErrAway = errors.New("the store is unavailable")

// Config is the configuration of a store. Every field except Queue and Now is required; File is required for SQLite.
type Config struct {
	// Source is [SQLite], or the URL of a PostgreSQL database, `postgres://…`.
	Source string
	// File is the path of SQLite's file, which is created if it does not exist.
	File string
	// Name is the role that the tables belong to, `[a-z]{1,32}`. Roles may share a PostgreSQL database: each has a
	// table of versions of its own, and no two have a table of the same name.
	Name string
	// Marker names the tables of the first migration, separated by spaces. They show which role a database of an
	// earlier release belongs to, because then all roles had the same table of versions.
	Marker string
	// Migrations are goose's, in SQL, in the root of the file system.
	Migrations fs.FS
	// Queue names a table that transactions of [DB.Do] lock one after the other in PostgreSQL, so that they do not
	// collide. Empty: they collide, and are repeated.
	Queue string
	// Log receives the messages of migrations.
	Log *slog.Logger
	// Now is SQLite's clock, for tests; nil means time.Now. PostgreSQL has its own.
	Now func() time.Time
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	sql   *sql.DB
	queue string           // SQL that waits for the transactions before; empty for none
	now   func() time.Time // nil: the database's
	// working has a slot for each transaction that has a connection; nil for SQLite, which has one connection.
	working chan struct{}
}

// Open opens a store and migrates its tables forward. The caller closes the store. An error names the source without
// its password.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	if cfg.Migrations == nil || cfg.Log == nil || cfg.Marker == "" || !isName(cfg.Name) {
		return nil, errors.New("sqlstore: a name, a marker, migrations and a log are required")
	}
	db, dialect, err := open(cfg)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, db.sql, dialect, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store %s: %w", name(cfg), err), db.Close())
	}
	return db, nil
}

func open(cfg Config) (*DB, goose.Dialect, error) {
	switch {
	case cfg.Source == SQLite && cfg.File != "":
		if err := private(cfg.File); err != nil {
			return nil, "", err
		}
		// There is one connection, because SQLite has one writer anyway, and so reads never fail as busy. FULL makes
		// commits survive a loss of power.
		dsn := "file:" + (&url.URL{Path: cfg.File}).EscapedPath() +
			"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=secure_delete(1)&_pragma=busy_timeout(5000)"
		db, err := sql.Open("sqlite", dsn)
		if err != nil {
			return nil, "", fmt.Errorf("open the store %s: %w", name(cfg), err)
		}
		db.SetMaxOpenConns(1)
		now := cfg.Now
		if now == nil {
			now = time.Now
		}
		return &DB{sql: db, now: now}, goose.DialectSQLite3, nil
	case strings.HasPrefix(cfg.Source, "postgres://"), strings.HasPrefix(cfg.Source, "postgresql://"):
		db, err := openPostgres(cfg.Source)
		if err != nil {
			return nil, "", fmt.Errorf("open the store %s: %w", name(cfg), err)
		}
		found := &DB{sql: db, working: make(chan struct{}, maxOpen)}
		if cfg.Queue != "" {
			found.queue = queueFor(cfg.Queue)
		}
		return found, goose.DialectPostgres, nil
	default:
		return nil, "", fmt.Errorf("sqlstore: no store is called %q: write `sqlite`, or `postgres://USER:PASSWORD@HOST/DATABASE`", name(cfg))
	}
}

// private creates the file, if it does not exist, with access for this user only: SQLite would allow every user to
// read it who may read the folder. SQLite creates its other files with the same mode.
func private(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	return f.Close()
}

// migrate applies the migrations that the store does not have yet. Processes that start at the same time wait for
// each other in PostgreSQL.
func migrate(ctx context.Context, db *sql.DB, dialect goose.Dialect, cfg Config) error {
	opts := []goose.ProviderOption{goose.WithSlog(cfg.Log), goose.WithDisableGlobalRegistry(true)}
	if dialect == goose.DialectPostgres {
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithSessionLocker(locker), goose.WithTableName(versionTable(cfg)))
		if err := adopt(ctx, db, cfg); err != nil {
			return away(err)
		}
	}
	provider, err := goose.NewProvider(dialect, db, cfg.Migrations, opts...)
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	have, target, err := provider.GetVersions(ctx)
	if err != nil {
		return away(err)
	}
	if have > target {
		return fmt.Errorf("its tables are of version %d and this program knows %d: run the newer program", have, target)
	}
	if _, err := provider.Up(ctx); err != nil {
		return away(err)
	}
	return nil
}

// name returns the source for errors, without credentials.
func name(cfg Config) string {
	if u, err := url.Parse(cfg.Source); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host + u.Path
	}
	if cfg.Source == SQLite {
		return cfg.File
	}
	scheme, _, _ := strings.Cut(cfg.Source, ":")
	return scheme
}

// Close closes the store.
func (d *DB) Close() error { return d.sql.Close() }
