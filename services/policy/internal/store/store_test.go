package store_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
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
				cfg.File = filepath.Join(t.TempDir(), "catalogue.db")
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

func untrusted(string) bool { return false }

// listDefinitions stores a report of a list that contains the given tool definitions. It returns the changed server and
// the version of the catalog.
func listDefinitions(t *testing.T, s *store.Store, name string, definitions map[string]string) (*catalog.Server, int64) {
	t.Helper()
	r := catalog.Report{Version: "2025-11-25", Whole: true}
	for tool, text := range definitions {
		l, err := catalog.ParseListed(tool, text)
		if err != nil {
			t.Fatal(err)
		}
		r.Tools = append(r.Tools, l)
	}
	server, version, err := s.Change(t.Context(), name, false, func(tx *sqlstore.Tx, before *catalog.Server, text func(catalog.Digest) (string, error)) (store.Change, error) {
		out, err := before.Report(r, catalog.Settings{Mode: catalog.FirstUse}, tx.Now, text)
		change := store.Change{Server: out.Server, New: make(map[catalog.Digest]string), Removed: out.Removed}
		for _, i := range out.New {
			change.New[r.Tools[i].Digest] = r.Tools[i].Text
		}
		return change, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return server, version
}

func TestStore_ReturnsStoredServers(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		if version, servers, err := s.ChangedSince(t.Context(), 0, untrusted); err != nil || version != 0 || servers != nil {
			t.Fatalf("a new store has %v at %d: %v", servers, version, err)
		}
		text := `{"name":"get","description":"Reads ё.","inputSchema":{}}`
		server, version := listDefinitions(t, s, "files", map[string]string{"get": text})
		listDefinitions(t, s, "notes", map[string]string{"put": `{"name":"put"}`})
		digest := server.Tools["get"].Definitions[0].Digest

		second := open()
		now, servers, err := second.ChangedSince(t.Context(), 0, untrusted)
		if err != nil || len(servers) != 2 || now != version+1 {
			t.Fatalf("%d servers at %d: %v", len(servers), now, err)
		}
		for _, got := range servers {
			if got.Name == "files" {
				if diff := cmp.Diff(server, got); diff != "" {
					t.Errorf("(-stored +read):\n%s", diff)
				}
			}
		}
		if _, servers, err := second.ChangedSince(t.Context(), version, untrusted); err != nil || len(servers) != 1 || servers[0].Name != "notes" {
			t.Errorf("since %d: %v, %v", version, servers, err)
		}
		if got, err := second.Text(t.Context(), "files", digest); err != nil || got != text {
			t.Errorf("text: %q, %v", got, err)
		}
		if _, err := second.Text(t.Context(), "notes", digest); !errors.Is(err, store.ErrNotStored) {
			t.Errorf("another server's text: %v", err)
		}
		if all, err := second.Texts(t.Context(), "files"); err != nil || len(all) != 1 || all[digest] != text {
			t.Errorf("texts: %v, %v", all, err)
		}
	})
}

func TestChange_VersionStaysWhenNothingChanges(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		definitions := map[string]string{"get": `{"name":"get"}`}
		_, first := listDefinitions(t, s, "files", definitions)
		if _, second := listDefinitions(t, s, "files", definitions); first == 0 || second != 0 {
			t.Errorf("versions %d and %d", first, second)
		}
		server, _ := listDefinitions(t, s, "files", map[string]string{"put": `{"name":"put"}`})
		for name, tool := range server.Tools {
			for _, d := range tool.Definitions {
				if _, err := s.Text(t.Context(), "files", d.Digest); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		boom := errors.New("boom")
		_, _, err := s.Change(t.Context(), "files", false, func(*sqlstore.Tx, *catalog.Server, func(catalog.Digest) (string, error)) (store.Change, error) {
			return store.Change{}, boom
		})
		if !errors.Is(err, boom) {
			t.Error(err)
		}
	})
}

// Two processes change the same server at the same time. No change is lost.
func TestChange_ConcurrentReplicasLoseNoChange(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		listDefinitions(t, one, "files", map[string]string{"get": `{"name":"get"}`})
		done := make(chan error)
		const each = 20
		for _, s := range []*store.Store{one, two} {
			go func() {
				var err error
				for range each {
					_, _, changed := s.Change(t.Context(), "files", false, func(_ *sqlstore.Tx, before *catalog.Server, _ func(catalog.Digest) (string, error)) (store.Change, error) {
						next := *before
						next.NotStored++
						return store.Change{Server: &next}, nil
					})
					err = errors.Join(err, changed)
				}
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		_, servers, err := one.ChangedSince(t.Context(), 0, untrusted)
		if err != nil || len(servers) != 1 || servers[0].NotStored != 2*each {
			t.Errorf("%+v, %v", servers, err)
		}
	})
}

// The tools of a server were classified with another trust setting. The tools are reclassified when the server is read
// and when it is changed.
func TestChangedSince_ReclassifiesWhenTheClassifierChanged(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		text := `{"name":"get","description":"Gets it.","annotations":{"destructiveHint":true,"readOnlyHint":true}}`
		listDefinitions(t, s, "files", map[string]string{"get": text})
		_, servers, err := s.ChangedSince(t.Context(), 0, func(string) bool { return true })
		if err != nil || len(servers) != 1 || !servers[0].Trusted {
			t.Fatalf("%+v, %v", servers, err)
		}
		after, _, err := s.Change(t.Context(), "files", true, func(_ *sqlstore.Tx, before *catalog.Server, _ func(catalog.Digest) (string, error)) (store.Change, error) {
			next := *before
			next.NotStored++
			return store.Change{Server: &next}, nil
		})
		if err != nil || !after.Trusted {
			t.Fatalf("%+v, %v", after, err)
		}
		l, err := catalog.ParseListed("get", text)
		if err != nil {
			t.Fatal(err)
		}
		for trusted, server := range map[bool]*catalog.Server{true: after, false: servers[0]} {
			if diff := cmp.Diff(catalog.Classify(text, true), server.Tools["get"].FindDefinition(l.Digest).Class); diff != "" {
				t.Errorf("after a change %t (-want +got):\n%s", trusted, diff)
			}
		}
		if _, servers, err = s.ChangedSince(t.Context(), 0, untrusted); err != nil || servers[0].Trusted {
			t.Errorf("%+v, %v", servers, err)
		}
	})
}
