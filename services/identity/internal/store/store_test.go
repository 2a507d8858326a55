package store_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

func TestMain(m *testing.M) { os.Exit(sqlstoretest.Main(m)) }

// eachStore runs the function story with SQLite and with PostgreSQL. Each call of the function open opens a store with
// the same tables.
func eachStore(t *testing.T, story func(t *testing.T, open func() *store.Store)) {
	t.Helper()
	t.Parallel()
	run := func(cfg store.Config) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			cfg := cfg
			if cfg.Source == "" {
				cfg.Source = sqlstoretest.Postgres(t)
			} else {
				cfg.File = filepath.Join(t.TempDir(), "identity.db")
			}
			cfg.Log = slog.New(slog.DiscardHandler)
			story(t, func() *store.Store {
				s, err := store.Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			})
		}
	}
	t.Run("SQLite", run(store.Config{Source: "sqlite"}))
	t.Run("PostgreSQL", run(store.Config{}))
}
