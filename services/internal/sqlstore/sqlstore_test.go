package sqlstore_test

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }

const counters = "-- +goose Up\nCREATE TABLE counters (name TEXT PRIMARY KEY, n BIGINT NOT NULL, raw BYTEA);\n"

func migrations(texts ...string) fs.FS {
	out := fstest.MapFS{}
	for i, text := range texts {
		out["0000"+string(rune('1'+i))+"_x.sql"] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// eachStore runs a test with SQLite and with PostgreSQL. The function test receives the configuration of a new store.
func eachStore(t *testing.T, test func(t *testing.T, config sqlstore.Config)) {
	t.Helper()
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, sqlstore.Config{Source: sqlstore.SQLite, File: filepath.Join(t.TempDir(), "a file?#%.db")})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, sqlstore.Config{Source: sqlstoretest.Postgres(t)})
	})
}

func open(t *testing.T, cfg sqlstore.Config, texts ...string) *sqlstore.DB {
	t.Helper()
	db, err := openStore(t, cfg, texts...)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openStore(t *testing.T, cfg sqlstore.Config, texts ...string) (*sqlstore.DB, error) {
	t.Helper()
	cfg.Name, cfg.Marker = cmp.Or(cfg.Name, "counting"), cmp.Or(cfg.Marker, "counters")
	cfg.Migrations, cfg.Log = migrations(texts...), slog.New(slog.DiscardHandler)
	db, err := sqlstore.Open(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() { _ = db.Close() })
	}
	return db, err
}

func read(t *testing.T, db *sqlstore.DB) (n int64, raw []byte) {
	t.Helper()
	err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT n, raw FROM counters WHERE name = $1", "a").Scan(&n, &raw)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, raw
}

func insert(ctx context.Context, tx *sqlstore.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO counters (name, n, raw) VALUES ($1, $2, $3)", "a", int64(1)<<62, []byte{0, 255})
	return err
}

func TestDo_CommitsDurably(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg sqlstore.Config) {
		db := open(t, cfg, counters)
		if err := db.Do(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		boom := errors.New("boom")
		err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
			if _, err := tx.ExecContext(ctx, "UPDATE counters SET n = 0"); err != nil {
				return err
			}
			return boom
		})
		if !errors.Is(err, boom) || errors.Is(err, sqlstore.ErrUnavailable) {
			t.Errorf("a transaction that fails returns %v", err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if n, raw := read(t, open(t, cfg, counters)); n != 1<<62 || string(raw) != "\x00\xff" {
			t.Errorf("%d, %q", n, raw)
		}
	})
}

// Only the owner of a store's file can read it, even if other users have access to the directory.
func TestOpen_CreatesPrivateFiles(t *testing.T) {
	t.Parallel()
	cfg := sqlstore.Config{Source: sqlstore.SQLite, File: filepath.Join(t.TempDir(), "a.db")}
	if err := open(t, cfg, counters).Do(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(cfg.File + "*")
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
}

// Many callers, on several connections to one store, read a value and write a new value that depends on the value they
// read. No caller's change is lost.
func TestDo_IsSerializable(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg sqlstore.Config) {
		db := open(t, cfg, counters)
		other := db
		if cfg.File == "" {
			other = open(t, cfg, counters)
		}
		if err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO counters (name, n) VALUES ('a', 0)")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		const workers, times = 8, 10
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for range times {
					err := []*sqlstore.DB{db, other}[i%2].Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
						var n int64
						if err := tx.QueryRowContext(ctx, "SELECT n FROM counters").Scan(&n); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, "UPDATE counters SET n = $1", n+1)
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n, _ := read(t, db); n != workers*times {
			t.Errorf("counted %d, want %d", n, workers*times)
		}
	})
}

// With a queue, transactions that change data wait for each other, and almost no transaction is retried. On a busy
// machine, PostgreSQL sometimes reports a conflict although there is none (13.2.3, Serializable Isolation Level).
// Without a queue, most transactions are retried.
func TestDo_QueuePreventsCollisions(t *testing.T) {
	t.Parallel()
	db := open(t, sqlstore.Config{Source: sqlstoretest.Postgres(t), Queue: "counters"}, counters)
	if err := db.Do(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	const workers, times = 12, 10
	var wg sync.WaitGroup
	var all atomic.Int64
	for range workers {
		wg.Go(func() {
			for range times {
				err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
					all.Add(1)
					var n int64
					if err := tx.QueryRowContext(ctx, "SELECT n FROM counters").Scan(&n); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, "UPDATE counters SET n = $1", n-1)
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n, _ := read(t, db); n != 1<<62-workers*times || all.Load() < workers*times || all.Load() > workers*times*11/10 {
		t.Errorf("%d, after %d runs", n, all.Load())
	}
}

func TestOpen_MigratesForwardOnly(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg sqlstore.Config) {
		const more = "-- +goose Up\nALTER TABLE counters ADD COLUMN more TEXT NOT NULL DEFAULT 'x';\n"
		old := open(t, cfg, counters)
		if err := old.Do(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		if n, _ := read(t, open(t, cfg, counters, more)); n != 1<<62 {
			t.Errorf("after the second migration: %d", n)
		}
		if _, err := openStore(t, cfg, counters); err == nil || !strings.Contains(err.Error(), "run the newer program") {
			t.Errorf("an older program opens newer tables: %v", err)
		}
		if _, err := openStore(t, cfg, counters, more, "-- +goose Up\nnonsense;\n"); err == nil || strings.Contains(err.Error(), "run the newer program") {
			t.Errorf("a broken migration: %v", err)
		}
	})
}

func TestOpen_ConcurrentProcessesMigrateOnce(t *testing.T) {
	t.Parallel()
	cfg := sqlstore.Config{Source: sqlstoretest.Postgres(t)}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := openStore(t, cfg, counters); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestTx_NowIsClockOfStore(t *testing.T) {
	eachStore(t, func(t *testing.T, cfg sqlstore.Config) {
		at := time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.UTC)
		if cfg.File != "" {
			cfg.Now = func() time.Time { return at }
		}
		db := open(t, cfg, counters)
		if err := db.Do(t.Context(), func(_ context.Context, tx *sqlstore.Tx) error {
			if cfg.File != "" && !tx.Now.Equal(at.Truncate(time.Microsecond)) || cfg.File == "" && time.Since(tx.Now).Abs() > time.Minute {
				t.Errorf("Now is %v", tx.Now)
			}
			if got := sqlstore.Time(sqlstore.Micros(tx.Now)); !got.Equal(tx.Now) {
				t.Errorf("%v is stored as %v", tx.Now, got)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	if !sqlstore.Time(sqlstore.Micros(time.Time{})).IsZero() {
		t.Error("the zero time is not restored as the zero time")
	}
}

func TestDo_ReportsErrAwayWhenServerIsKilled(t *testing.T) {
	t.Parallel()
	server := sqlstoretest.Start(t)
	db := open(t, sqlstore.Config{Source: server.Database(t)}, counters)
	if err := db.Do(t.Context(), insert); err != nil {
		t.Fatal(err)
	}
	during := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		server.Kill(t)
		_, err := tx.ExecContext(ctx, "UPDATE counters SET n = 0")
		return err
	})
	if !errors.Is(during, sqlstore.ErrUnavailable) {
		t.Errorf("killed within a transaction: %v", during)
	}
	if err := db.Do(t.Context(), insert); !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("while the store is unavailable: %v", err)
	}
	server.Restart(t)
	if n, _ := read(t, db); n != 1<<62 {
		t.Errorf("after the store is available again: %d", n)
	}
}

func TestOpen_RefusesInvalidSources(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"":                                  "no store is called",
		"mysql://u:secret@h/d":              "write `sqlite`, or `postgres://",
		"sqlite":                            "no store is called", // File is not set
		"postgres://u:secret@127.0.0.1:1/d": "the store is unavailable",
		"postgres://u:secret@h:port/d":      "invalid port",
		"postgres:secret":                   "no store is called",
	} {
		_, err := openStore(t, sqlstore.Config{Source: source}, counters)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", source, err)
		}
	}
	if _, err := sqlstore.Open(t.Context(), sqlstore.Config{Source: sqlstore.SQLite, File: "x"}); err == nil {
		t.Error("a store without migrations was opened")
	}
}
