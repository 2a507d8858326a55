package store_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/proto"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// storeWithOldSchema stores a template in a database that has the schema of an earlier release, with only the first two
// migrations.
func storeWithOldSchema(t *testing.T, cfg store.Config, template *wasmagentv1.Template) {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range []string{"00001_agents.sql", "00002_galleries.sql"} {
		text, err := os.ReadFile(filepath.Join("migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	db, err := sqlstore.Open(t.Context(), sqlstore.Config{Name: "wasmagent", Marker: "agents", Source: cfg.Source, File: cfg.File, Migrations: files, Log: cfg.Log})
	if err != nil {
		t.Fatal(err)
	}
	text, err := proto.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO templates (tenant, id, template) VALUES ('one', $1, $2)", template.GetId(), text); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO galleries (tenant, version) VALUES ('one', 1)")
		return err
	})
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A template was stored by a release that had no acceptance digests. The migration does not change the template, and
// treats the template's id as accepted. Therefore, the next template with the same id is quarantined, unless an
// operator adds it.
func TestMigration_QuarantinesReplacedOldTemplates(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{"SQLite": sqlstore.SQLite, "PostgreSQL": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if source == "" {
				server := sqlstoretest.Start(t)
				source = server.Database(t)
			}
			cfg := store.Config{
				Source: source, File: filepath.Join(t.TempDir(), "agents.db"), Folder: t.TempDir(), Holder: "test", Log: slog.New(slog.DiscardHandler),
			}
			storeWithOldSchema(t, cfg, &wasmagentv1.Template{Id: "old", Name: "as it was"})
			s, err := store.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			_, all, err := s.Templates(t.Context(), "one", 0)
			if err != nil || len(all) != 1 || all[0].GetQuarantined() || all[0].GetName() != "as it was" {
				t.Fatalf("there is %v, %v", all, err)
			}
			if err := s.RemoveTemplate(t.Context(), "one", "old"); err != nil {
				t.Fatal(err)
			}
			for _, tt := range []struct {
				tenant, id  string
				untrusted   bool
				quarantined bool
			}{{"one", "new", true, false}, {"two", "old", true, false}, {"one", "old", true, true}} {
				added := &wasmagentv1.Template{Id: tt.id}
				if taken, err := s.AddTemplates(t.Context(), tt.tenant, tt.untrusted, []*wasmagentv1.Template{added}); err != nil || taken || added.GetQuarantined() != tt.quarantined {
					t.Errorf("%+v: quarantined %v, taken %v, %v", tt, added.GetQuarantined(), taken, err)
				}
			}
			if err := s.RemoveTemplate(t.Context(), "one", "old"); err != nil {
				t.Fatal(err)
			}
			byOperator := &wasmagentv1.Template{Id: "old"}
			if _, err := s.AddTemplates(t.Context(), "one", false, []*wasmagentv1.Template{byOperator}); err != nil || byOperator.GetQuarantined() {
				t.Errorf("the template of an operator: %v, %v", byOperator, err)
			}
		})
	}
}
