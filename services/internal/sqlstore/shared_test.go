package sqlstore_test

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	fruit = "-- +goose Up\nCREATE TABLE fruit (name TEXT PRIMARY KEY);\n"
	ripe  = "-- +goose Up\nALTER TABLE fruit ADD COLUMN ripe BIGINT NOT NULL DEFAULT 0;\n"
	eaten = "-- +goose Up\nALTER TABLE fruit ADD COLUMN eaten BIGINT NOT NULL DEFAULT 0;\n"
	tools = "-- +goose Up\nCREATE TABLE tools (name TEXT PRIMARY KEY);\n"
)

func fruits(source string) sqlstore.Config {
	return sqlstore.Config{Source: source, Name: "fruits", Marker: "fruit"}
}

func toolbox(source string) sqlstore.Config {
	return sqlstore.Config{Source: source, Name: "toolbox", Marker: "tools"}
}

func checkWrite(t *testing.T, db *sqlstore.DB, statement string) {
	t.Helper()
	err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, statement)
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}

func TestOpen_RolesShareDatabase(t *testing.T) {
	t.Parallel()
	source := sqlstoretest.Postgres(t)
	checkWrite(t, open(t, fruits(source), fruit, ripe), "INSERT INTO fruit (name, ripe) VALUES ('apple', 1)")
	checkWrite(t, open(t, toolbox(source), tools), "INSERT INTO tools (name) VALUES ('saw')")
	checkWrite(t, open(t, fruits(source), fruit, ripe, eaten), "UPDATE fruit SET eaten = 1")
	checkWrite(t, open(t, toolbox(source), tools), "INSERT INTO tools (name) VALUES ('axe')")
	if _, err := openStore(t, fruits(source), fruit); err == nil || !strings.Contains(err.Error(), "run the newer program") {
		t.Errorf("an older program opens newer tables: %v", err)
	}
}

func TestOpen_RolesStartConcurrentlyOnEmptyDatabase(t *testing.T) {
	t.Parallel()
	source := sqlstoretest.Postgres(t)
	var group sync.WaitGroup
	for range 3 {
		for _, role := range []struct {
			cfg   sqlstore.Config
			texts []string
		}{{fruits(source), []string{fruit, ripe}}, {toolbox(source), []string{tools}}} {
			group.Go(func() {
				if _, err := openStore(t, role.cfg, role.texts...); err != nil {
					t.Errorf("%s: %v", role.cfg.Name, err)
				}
			})
		}
	}
	group.Wait()
}

// migrateEarlier migrates a database as earlier releases did. In these releases, all services used the same version
// table.
func migrateEarlier(t *testing.T, source string, texts ...string) error {
	t.Helper()
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations(texts...), goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = provider.Up(t.Context())
	return err
}

func TestOpen_AdoptsDatabaseOfEarlierRelease(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(t *testing.T, source string){
		"its own role first": func(t *testing.T, source string) {
			checkWrite(t, open(t, fruits(source), fruit, ripe, eaten), "INSERT INTO fruit (name, ripe, eaten) VALUES ('apple', 1, 1)")
			checkWrite(t, open(t, toolbox(source), tools), "INSERT INTO tools (name) VALUES ('saw')")
		},
		"another role first": func(t *testing.T, source string) {
			checkWrite(t, open(t, toolbox(source), tools), "INSERT INTO tools (name) VALUES ('saw')")
			checkWrite(t, open(t, fruits(source), fruit, ripe, eaten), "INSERT INTO fruit (name, ripe, eaten) VALUES ('apple', 1, 1)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := sqlstoretest.Postgres(t)
			if err := migrateEarlier(t, source, fruit, ripe); err != nil {
				t.Fatal(err)
			}
			first(t, source)
			checkWrite(t, open(t, fruits(source), fruit, ripe, eaten), "UPDATE fruit SET eaten = 2")
			if err := migrateEarlier(t, source, fruit, ripe); err == nil {
				t.Error("a program of the earlier release opens newer tables")
			}
		})
	}
}

func TestOpen_RefusesNewerDatabaseOfEarlierRelease(t *testing.T) {
	t.Parallel()
	source := sqlstoretest.Postgres(t)
	if err := migrateEarlier(t, source, fruit, ripe, eaten); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(t, fruits(source), fruit, ripe); err == nil || !strings.Contains(err.Error(), "run the newer program") {
		t.Errorf("opened: %v", err)
	}
}
