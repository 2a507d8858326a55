package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// Before you add a migration, run this command. It stores the rows that the program writes without the migration.
//
//	go test ./approval/internal/store -run TestMigrations_ReadRowsOfEarlierVersions -update
var update = flag.Bool("update", false, "store the rows that this program writes in testdata, for the tests of later versions")

// firstVersion is the first version of the tables whose rows are stored in testdata.
const firstVersion = 2

// earlierRows contains the rows that an earlier program wrote. They are the same for SQLite and PostgreSQL.
type earlierRows struct {
	// Migrations contains the SHA-256 digests of the program's migrations, by file name.
	Migrations map[string]string `json:"migrations"`
	// Rows contains the rows by table. Each row contains its values by column. A value is a number or a string. A byte
	// string is represented by an array that contains one hexadecimal string.
	Rows map[string][]map[string]any `json:"rows"`
	// States contains the state of each approval, by the approval's id.
	States map[string]approvalv1.ApprovalState `json:"states"`
}

// tables lists the tables in the order in which rows can be inserted.
var tables = []string{"moved", "approvals", "pending", "claims", "moves", "notices", "asked"}

// The store reads and changes the rows that earlier versions wrote, so that an upgrade loses no decision. The test also
// checks that the migrations of earlier versions have not changed.
func TestMigrations_ReadRowsOfEarlierVersions(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("migrations/*.sql")
	if err != nil || len(names) < firstVersion {
		t.Fatalf("%v, %v", names, err)
	}
	if *update {
		writeRows(t, names)
	}
	for version := firstVersion; version < len(names); version++ {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			t.Parallel()
			var rows earlierRows
			text, err := os.ReadFile(rowsFile(version))
			if err != nil {
				t.Fatalf("%v: check out the commit before migration %d, and store its rows by -update", err, version+1)
			}
			dec := json.NewDecoder(bytes.NewReader(text))
			dec.UseNumber()
			if err := dec.Decode(&rows); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(rows.Migrations, hashes(t, names[:version])); diff != "" {
				t.Fatalf("migrations have changed since (-then +now):\n%s", diff)
			}
			for name, cfg := range map[string]store.Config{
				"SQLite":     {Source: "sqlite", File: filepath.Join(t.TempDir(), "approvals.db")},
				"PostgreSQL": {Source: sqlstoretest.Postgres(t)},
			} {
				t.Run(name, func(t *testing.T) {
					rows.write(t, cfg, names[:version])
					rows.check(t, cfg)
				})
			}
		})
	}
}

func rowsFile(version int) string { return fmt.Sprintf("testdata/rows-%d.json", version) }

func hashes(t *testing.T, names []string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		out[filepath.Base(name)] = hex.EncodeToString(sum[:])
	}
	return out
}

// openAt opens a database to which only the named migration files are applied.
func openAt(t *testing.T, cfg store.Config, names []string) *sqlstore.DB {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = &fstest.MapFile{Data: text}
	}
	db, err := sqlstore.Open(t.Context(), sqlstore.Config{Name: "approval", Marker: "approvals", Source: cfg.Source, File: cfg.File, Migrations: files, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func (e *earlierRows) write(t *testing.T, cfg store.Config, names []string) {
	t.Helper()
	db := openAt(t, cfg, names)
	defer db.Close()
	err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) error {
		if _, err := tx.ExecContext(ctx, "DELETE FROM moved"); err != nil {
			return err
		}
		for _, table := range tables {
			for _, row := range e.Rows[table] {
				columns := slices.Sorted(maps.Keys(row))
				var places []string
				var values []any
				for i, column := range columns {
					places, values = append(places, fmt.Sprintf("$%d", i+1)), append(values, value(t, row[column]))
				}
				text := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(columns, ", "), strings.Join(places, ", "))
				if _, err := tx.ExecContext(ctx, text, values...); err != nil {
					return fmt.Errorf("%s: %w", text, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func value(t *testing.T, v any) any {
	t.Helper()
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	case []any:
		raw, err := hex.DecodeString(v[0].(string))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	default:
		return v
	}
}

// check reads all approvals with the current program. It also votes on, claims and completes some of the approvals that
// have not ended.
func (e *earlierRows) check(t *testing.T, cfg store.Config) {
	t.Helper()
	cfg.Log, cfg.Channels, cfg.Observe = slog.New(slog.DiscardHandler), channels, func(context.Context, store.Changes) {}
	s, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	states := make(map[string]approvalv1.ApprovalState)
	for id := range e.States {
		states[id] = get(t, s, id).Approval.GetState()
		do(t, s, func(ctx context.Context, tx *store.Tx) error {
			moves, err := tx.History(ctx, id, 100)
			if err == nil && len(moves) == 0 {
				err = fmt.Errorf("approval %s has no history", id)
			}
			return err
		})
	}
	if diff := cmp.Diff(e.States, states); diff != "" {
		t.Errorf("states (-then +now):\n%s", diff)
	}
	approve(t, s, "waits", "carla")
	do(t, s, func(ctx context.Context, tx *store.Tx) error {
		for _, id := range []string{"waits", "approved"} {
			r, err := tx.Get(ctx, "acme", id)
			if err != nil {
				return err
			}
			if refused, err := r.Claim(claimRequest("c-"+id, r.Approval.GetAttempt()), tx.Now); err != nil || refused != nil {
				return fmt.Errorf("claim %s: %v, %w", id, refused, err)
			}
			if err := tx.Save(ctx, r); err != nil {
				return err
			}
		}
		r, err := tx.Get(ctx, "acme", "claimed")
		if err != nil {
			return err
		}
		if _, err := r.Complete("c-claimed", "gw", approvalv1.CallOutcome_CALL_OUTCOME_DONE, tx.Now); err != nil {
			return err
		}
		return tx.Save(ctx, r)
	})
}

// writeRows writes the rows of the current program to the file of its version.
func writeRows(t *testing.T, names []string) {
	t.Helper()
	cfg := store.Config{Source: "sqlite", File: filepath.Join(t.TempDir(), "approvals.db")}
	e := earlierRows{Migrations: hashes(t, names), Rows: make(map[string][]map[string]any), States: createRecords(t, cfg)}
	db := openAt(t, cfg, names)
	defer db.Close()
	err := db.Do(t.Context(), func(ctx context.Context, tx *sqlstore.Tx) (err error) {
		for _, table := range tables {
			if e.Rows[table], err = readRows(ctx, tx, table); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rowsFile(len(names)), append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readRows(ctx context.Context, tx *sqlstore.Tx, table string) (out []map[string]any, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT * FROM "+table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		values, row := make([]any, len(columns)), make(map[string]any)
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		for i, column := range columns {
			if raw, ok := values[i].([]byte); ok {
				values[i] = []string{hex.EncodeToString(raw)}
			}
			row[column] = values[i]
		}
		out = append(out, row)
	}
	return out, rows.Err()
}

// century is the time to decide and the time to execute that the stored approvals have, and the duration of their
// claims. It is so long that no approval or claim expires while the files in testdata are in use.
const century = 100 * 365 * 24 * time.Hour

func createRecords(t *testing.T, cfg store.Config) map[string]approvalv1.ApprovalState {
	t.Helper()
	cfg.Log, cfg.Channels, cfg.Observe = slog.New(slog.DiscardHandler), channels, func(context.Context, store.Changes) {}
	s, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patient := func(q *lifecycle.OpenRequest) { q.Times = lifecycle.Times{Decide: century, Execute: century} }
	four := func(q *lifecycle.OpenRequest) { q.Decision.Approval = &policyv1.ApprovalTerms{Quorum: 2} }
	out := make(map[string]approvalv1.ApprovalState)
	for _, id := range []string{"waits", "approved", "claimed", "done", "denied", "cancelled", "unknown"} {
		if id == "waits" {
			openApproval(t, s, openRequest(id, patient, four))
		} else {
			openApproval(t, s, openRequest(id, patient))
		}
		if id != "denied" && id != "cancelled" {
			approve(t, s, id, "ben")
		}
		do(t, s, func(ctx context.Context, tx *store.Tx) error { return moveToState(ctx, tx, id) })
		out[id] = get(t, s, id).Approval.GetState()
	}
	return out
}

// moveToState changes an approval to the state that the approval's id indicates.
func moveToState(ctx context.Context, tx *store.Tx, id string) error {
	r, err := tx.Get(ctx, "acme", id)
	if err != nil {
		return err
	}
	claim := claimRequest("c-"+id, 1)
	claim.Duration = century
	switch id {
	case "claimed", "done", "unknown":
		if refused, err := r.Claim(claim, tx.Now); err != nil || refused != nil {
			return fmt.Errorf("claim %s: %v, %w", id, refused, err)
		}
	case "denied":
		err = r.Vote(lifecycle.Ballot{Voter: &identityv1.Principal{Tenant: "acme", Subject: "ben"}, Verdict: approvalv1.Verdict_VERDICT_DENY, Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN}, tx.Now)
	case "cancelled":
		err = r.Cancel("olga", "no need", tx.Now)
	}
	if err != nil {
		return err
	}
	outcome := map[string]approvalv1.CallOutcome{"done": approvalv1.CallOutcome_CALL_OUTCOME_DONE, "unknown": approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN}
	if came, ok := outcome[id]; ok {
		if _, err := r.Complete("c-"+id, "gw", came, tx.Now); err != nil {
			return err
		}
	}
	return tx.Save(ctx, r)
}
