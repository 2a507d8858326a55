package store_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/proto"

	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// oldMigrations returns the migrations of an earlier release, in which each copy of an agent had separate counters.
func oldMigrations(t *testing.T) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range []string{"00001_agents.sql", "00002_galleries.sql", "00003_accepted.sql", "00004_model_days.sql"} {
		text, err := os.ReadFile(filepath.Join("migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	return files
}

// An agent and its fork have separate counters. The migration replaces them with their sum.
func TestMigration_AddsUpCountersOfCopies(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{"SQLite": sqlstore.SQLite, "PostgreSQL": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if source == "" {
				source = sqlstoretest.Postgres(t)
			}
			cfg := store.Config{
				Source: source, File: filepath.Join(t.TempDir(), "agents.db"), Folder: t.TempDir(), Holder: "test", Log: slog.New(slog.DiscardHandler),
			}
			db, err := sqlstore.Open(t.Context(), sqlstore.Config{Name: "wasmagent", Marker: "agents", Source: cfg.Source, File: cfg.File, Migrations: oldMigrations(t), Log: cfg.Log})
			if err != nil {
				t.Fatal(err)
			}
			err = db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
				for made, id := range []string{"first", "fork"} {
					record, err := proto.Marshal(&wasmstorev1.Record{Id: id, JournalId: "first", Creator: person("ana")})
					if err != nil {
						return err
					}
					_, err = tx.ExecContext(ctx, `INSERT INTO agents (id, made, version, tenant, owner, state, restorable, size, turn, holder, held, record)
						VALUES ($1, $2, 1, 't', 'ana', 4, 0, 0, 0, '', 0, $3)`, id, int64(made+1), record)
					if err != nil {
						return err
					}
					if _, err := tx.ExecContext(ctx, "INSERT INTO spent (id, granted, what, place, used) VALUES ($1, '', 'tool', 0, 2)", id); err != nil {
						return err
					}
				}
				return nil
			})
			if err = errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			for start := range 2 { // the second start must not migrate the counters again
				s, err := store.Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				request := store.UseRequest{Budget: store.Budget{Tenant: "t", JournalID: "first"}, Matches: []manifest.Match{{MaxUses: 5}}}
				uses, err := s.CountUses(t.Context(), []store.UseRequest{request})
				if err != nil {
					t.Fatalf("start %d: a fifth use: %v", start, err)
				}
				if _, err := s.CountUses(t.Context(), []store.UseRequest{request}); !errors.Is(err, manifest.ErrSpent) {
					t.Errorf("start %d: a sixth use: %v", start, err)
				}
				if err := errors.Join(s.UncountUses(t.Context(), uses), s.RemoveUnusedCounters(t.Context()), s.Close()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// All processes sign with the key of the first process. Archives that were signed with other keys are still accepted.
func TestArchiveKeys_AllProcessesSignWithFirstKey(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		var keys [3]ed25519.PrivateKey
		for i := range keys {
			_, keys[i], _ = ed25519.GenerateKey(nil)
			signs, all, err := s.ArchiveKeys(t.Context(), keys[i], i != 2) // the third key has signed nothing yet
			if err != nil || !signs.Equal(keys[0]) || len(all) != []int{1, 2, 2}[i] {
				t.Errorf("process %d signs with a key that differs from the first one, or accepts %d: %v", i, len(all), err)
			}
		}
	})
}

// AddArchivePart returns an archive as soon as it is complete. It refuses a part that differs from the stored bytes,
// and a part that would leave a gap.
func TestAddArchivePart_RefusesOtherBytesAndGaps(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func(string) *store.Store) {
		s := open("here")
		key := store.ArchiveKey{Owner: principal.Key{Tenant: "t", Subject: "ana"}, Digest: "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589", IsImport: true} // of abcd
		add := func(offset int64, part string) (store.Archive, string, error) {
			archive, content, err := s.AddArchivePart(t.Context(), key, 4, offset, []byte(part))
			return archive, string(content), err
		}
		if archive, whole, err := add(0, "ab"); err != nil || archive.Stored != 2 || whole != "" {
			t.Fatalf("the first part: %+v %q %v", archive, whole, err)
		}
		if _, _, err := add(3, "d"); !errors.Is(err, store.ErrPartOrder) {
			t.Errorf("a part after a gap: %v", err)
		}
		if _, _, err := add(0, "ax"); !errors.Is(err, store.ErrPartInvalid) {
			t.Errorf("a first part with other bytes: %v", err)
		}
		if _, _, err := add(2, "cde"); !errors.Is(err, store.ErrPartInvalid) {
			t.Errorf("a part beyond the end: %v", err)
		}
		if archive, whole, err := add(1, "bcd"); err != nil || archive.Stored != 4 || whole != "abcd" {
			t.Errorf("a part that overlaps: %+v %q %v", archive, whole, err)
		}
		if err := s.SetArchiveMade(t.Context(), key, "new", "old"); err != nil {
			t.Fatal(err)
		}
		if archive, whole, err := add(2, "cd"); err != nil || archive.AgentID != "new" || archive.ExportedID != "old" || whole != "" {
			t.Errorf("after an agent was created from it: %+v %q %v", archive, whole, err)
		}
		key.IsImport = false
		if _, _, err := s.ArchivePart(t.Context(), key, 0); !errors.Is(err, store.ErrArchiveUnknown) {
			t.Errorf("an archive that is being imported can be fetched: %v", err)
		}
	})
}
