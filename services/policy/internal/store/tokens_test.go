package store_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

// A store of an earlier release contains a token that an operator has created. The token is read with all its times.
func TestTokens_OfAnEarlierReleaseAreRead(t *testing.T) {
	t.Parallel()
	older := fstest.MapFS{}
	for _, name := range []string{"00001_catalog.sql", "00002_stops.sql", "00003_tokens.sql"} {
		text, err := os.ReadFile(filepath.Join("migrations", name))
		if err != nil {
			t.Fatal(err)
		}
		older[name] = &fstest.MapFile{Data: text}
	}
	file, log := filepath.Join(t.TempDir(), "catalogue.db"), slog.New(slog.DiscardHandler)
	db, err := sqlstore.Open(t.Context(), sqlstore.Config{Name: "policy", Marker: "changes servers definitions", Source: "sqlite", File: file, Migrations: older, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	hash := "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	err = db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO tokens (name, sha256, tenant, subject, agent, owner, member_of, created, expires,
				created_by_tenant, created_by, last_used, revoked, revoked_by_tenant, revoked_by, ended)
			VALUES ('cursor-1', $1, 'acme', 'cursor-1', 'cursor', 'ana', '["on call"]', 1000000, 4000000, 'default', 'root', 2000000, 3000000, 'acme', 'zoe', 3000000)`, hash)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Config{Source: "sqlite", File: file, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tokens, err := s.Tokens(t.Context())
	if err != nil || len(tokens) != 1 {
		t.Fatalf("%+v, %v", tokens, err)
	}
	got, at := tokens[0], func(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }
	if got.Name != "cursor-1" || got.Tenant != "acme" || got.Agent != "cursor" || got.Owner != "ana" || len(got.Groups) != 1 || got.Groups[0] != "on call" || got.SHA256[1] != 0x11 ||
		got.CreatedByTenant != "default" || got.CreatedBy != "root" || got.RevokedByTenant != "acme" || got.RevokedBy != "zoe" ||
		got.Created != at(1) || got.LastUsed != at(2) || got.Revoked != at(3) || got.Expires != at(4) {
		t.Errorf("%+v", got)
	}
	if err := s.DeleteTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tokens, err := s.Tokens(t.Context()); len(tokens) != 0 || err != nil {
		t.Errorf("after the deletion: %+v, %v", tokens, err)
	}
}
