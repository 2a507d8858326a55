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

// ErrAway means that the store could not be reached, or that its answer to a
// commit was lost: whether the change holds is not known, and asking again is the
// way to learn it.
var ErrAway = errors.New("the store is away")

// Config says where tables are kept. Every field but Queue and Now is required.
type Config struct {
	// Source is [SQLite], or the URL of a PostgreSQL database, `postgres://…`.
	Source string
	// File is the path of SQLite's file; it is made where it is missing.
	File string
	// Name is the role whose tables they are, `[a-z]+`. Roles may share a PostgreSQL database: each has its version in a
	// table of its own, and no two have a table of the same name.
	Name string
	// Marker names the tables that the first migration makes, separated by spaces. They tell whose version a database of an earlier release has,
	// where all roles named the table of versions alike.
	Marker string
	// Migrations are goose's, in SQL, in the root of the file system.
	Migrations fs.FS
	// Queue names a table at which transactions of [DB.Do] take turns in PostgreSQL, so
	// that they do not collide. Empty: each tries until it is lucky.
	Queue string
	// Log takes what migrations do.
	Log *slog.Logger
	// Now is SQLite's clock, for tests; nil means time.Now. PostgreSQL has its own.
	Now func() time.Time
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	sql   *sql.DB
	queue string           // SQL that waits for a transaction's turn; empty for none
	now   func() time.Time // nil: the database's
	// working has a place for each transaction that has a connection; nil where all take
	// turns at one.
	working chan struct{}
}

// Open opens a store and brings its tables up to date, forward alone. The caller
// closes it. An error names the source, without its password.
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
		// One connection: the file has one writer anyway, and readers never find it
		// busy. FULL survives the loss of power after a commit.
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

// private makes the file, where there is none, for this user alone: SQLite would make
// it for everybody who may read the folder. Its companions get the same mode.
func private(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	return f.Close()
}

// migrate applies the migrations that the store does not have yet. Processes that
// start together on one PostgreSQL wait for each other.
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

// name is the source as errors may show it.
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
