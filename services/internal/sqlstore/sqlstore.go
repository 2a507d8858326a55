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

// SQLite is the value of [Config.Source] for a file in the service's data directory.
const SQLite = "sqlite"

// ErrUnavailable means that the store could not be reached, or that its response to a commit was lost. In the second
// case, it is unknown whether the change was made. The caller can find this out by trying again.
var ErrUnavailable = errors.New("the store is unavailable")

// Config configures a store. All fields except Queue, Now and File are required. File is required for SQLite.
type Config struct {
	// Source is [SQLite], or the URL of a PostgreSQL database, `postgres://…`.
	Source string
	// File is the path of the SQLite file. The file is created if it does not exist.
	File string
	// Name is the name of the service to which the tables belong, `[a-z]{1,32}`. Services may share a PostgreSQL
	// database. In that case each service has its own version table, and no two services have a table with the same
	// name.
	Name string
	// Marker lists the tables of the first migration, separated by spaces. These tables show to which service a
	// database from an earlier release belongs. They are necessary because in earlier releases all services used the
	// same version table.
	Marker string
	// Migrations contains the goose migrations, as SQL files in its root directory.
	Migrations fs.FS
	// Queue is the name of a table in PostgreSQL. Transactions of [DB.Do] lock this table one after the other, so that
	// they don't conflict. If Queue is empty, transactions can conflict and are then retried.
	Queue string
	// Log receives the messages of migrations.
	Log *slog.Logger
	// Now is a clock that tests can set for SQLite. The default is time.Now. PostgreSQL uses the server's clock.
	Now func() time.Time
}

// DB is an open store. It is safe for concurrent use.
type DB struct {
	sql   *sql.DB
	queue string           // SQL that waits for earlier transactions, or empty if there is no queue
	now   func() time.Time // if nil, the database's clock is used
	// answerTimeout is the timeout for each response from the store until a transaction has begun. It does not apply to
	// SQLite, which runs in this process and whose transactions wait for each other. For SQLite, only the timeout of a
	// whole transaction applies.
	answerTimeout time.Duration
	// slots contains one element for each connection that a transaction is using. It is nil for SQLite, which has only
	// one connection.
	slots chan struct{}
}

// Open opens a store and applies missing migrations. The caller must close the store. An error contains the source
// without its password.
func Open(ctx context.Context, cfg Config) (*DB, error) {
	if cfg.Migrations == nil || cfg.Log == nil || cfg.Marker == "" || !isName(cfg.Name) {
		return nil, errors.New("sqlstore: a name, a marker, migrations and a log are required")
	}
	db, dialect, err := open(cfg)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, db.sql, dialect, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("open the store %s: %w", sourceName(cfg), err), db.Close())
	}
	return db, nil
}

func open(cfg Config) (*DB, goose.Dialect, error) {
	switch {
	case cfg.Source == SQLite && cfg.File != "":
		if err := createPrivate(cfg.File); err != nil {
			return nil, "", err
		}
		// SQLite allows only one writer at a time, so one connection is enough, and reads never fail because the
		// database is busy. With synchronous(FULL), commits survive a power failure.
		dsn := "file:" + (&url.URL{Path: cfg.File}).EscapedPath() +
			"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=secure_delete(1)&_pragma=busy_timeout(5000)"
		db, err := sql.Open("sqlite", dsn)
		if err != nil {
			return nil, "", fmt.Errorf("open the store %s: %w", sourceName(cfg), err)
		}
		db.SetMaxOpenConns(1)
		now := cfg.Now
		if now == nil {
			now = time.Now
		}
		return &DB{sql: db, now: now, answerTimeout: transactionTimeout}, goose.DialectSQLite3, nil
	case strings.HasPrefix(cfg.Source, "postgres://"), strings.HasPrefix(cfg.Source, "postgresql://"):
		db, err := openPostgres(cfg.Source)
		if err != nil {
			return nil, "", fmt.Errorf("open the store %s: %w", sourceName(cfg), err)
		}
		found := &DB{sql: db, slots: make(chan struct{}, maxOpen), answerTimeout: postgresAnswerTimeout}
		if cfg.Queue != "" {
			found.queue = queueFor(cfg.Queue)
		}
		return found, goose.DialectPostgres, nil
	default:
		return nil, "", fmt.Errorf("sqlstore: no store is called %q: write `sqlite`, or `postgres://USER:PASSWORD@HOST/DATABASE`", sourceName(cfg))
	}
}

// createPrivate creates the file if it does not exist. Only this user can access the new file. If SQLite created the
// file, every user with access to the directory could read it. SQLite creates its other files with the same mode as
// this file.
func createPrivate(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	return f.Close()
}

// migrate applies the migrations that have not been applied yet. In PostgreSQL, processes that start at the same time
// wait for each other.
func migrate(ctx context.Context, db *sql.DB, dialect goose.Dialect, cfg Config) error {
	opts := []goose.ProviderOption{goose.WithSlog(cfg.Log), goose.WithDisableGlobalRegistry(true)}
	if dialect == goose.DialectPostgres {
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithSessionLocker(locker), goose.WithTableName(versionTable(cfg)))
		if err := adoptVersionTable(ctx, db, cfg); err != nil {
			return wrapUnavailable(err)
		}
	}
	files, err := sqlMigrations(cfg.Migrations)
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	provider, err := goose.NewProvider(dialect, db, nil, append(opts, goose.WithGoMigrations(files...))...)
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	have, target, err := provider.GetVersions(ctx)
	if err != nil {
		return wrapUnavailable(err)
	}
	if have > target {
		return fmt.Errorf("its tables have version %d, but this program supports only version %d: run the newer program", have, target)
	}
	if _, err := provider.Up(ctx); err != nil {
		return wrapUnavailable(err)
	}
	return nil
}

// sqlMigrations returns migrations that each execute a whole SQL file. Both drivers accept several statements without
// arguments at a time, while goose's own parser of SQL files allocates 4 MiB for each line.
func sqlMigrations(files fs.FS) ([]*goose.Migration, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	var all []*goose.Migration
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, err
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		all = append(all, goose.NewGoMigration(version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, string(text))
			return err
		}}, nil))
	}
	return all, nil
}

// sourceName returns the source for error messages, without credentials.
func sourceName(cfg Config) string {
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
