package journal_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func config(dir string) journal.Config {
	cfg := journal.DefaultConfig(dir, keysOf(dir))
	cfg.Log = slog.New(slog.DiscardHandler)
	cfg.Build = "test"
	return cfg
}

func keysOf(dir string) string { return filepath.Clean(dir) + ".keys" }

func open(t testing.TB, cfg journal.Config) *journal.Journal {
	t.Helper()
	j, err := journal.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func closeJournal(t testing.TB, j *journal.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func writeIntent(t testing.TB, j *journal.Journal, id string) {
	t.Helper()
	if err := j.Intent(t.Context(), &journal.Record{DecisionID: id, Effect: "allow"}); err != nil {
		t.Fatal(err)
	}
}

func writeRefusal(t testing.TB, j *journal.Journal, id string) {
	t.Helper()
	if err := j.Refusal(t.Context(), &journal.Record{DecisionID: id, Code: "denied_by_rule"}); err != nil {
		t.Fatal(err)
	}
}

// files returns the paths of a chain's segments, oldest first.
func files(t testing.TB, dir, chain string) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS(dir), chain+"-*.jsonl") // Glob returns the names in order
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// lines returns the lines of a chain. It reads the files without using the tested package.
func lines(t testing.TB, dir, chain string) []string {
	t.Helper()
	var all []string
	for _, path := range files(t, dir, chain) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

func read(t testing.TB, line string) journal.Record {
	t.Helper()
	rec, err := journal.Parse([]byte(line))
	if err != nil {
		t.Fatalf("line %q: %v", line, err)
	}
	return rec
}

// ids returns the decision ids of a chain's records, in order.
func ids(t testing.TB, dir, chain string) []string {
	t.Helper()
	var all []string
	for _, line := range lines(t, dir, chain) {
		all = append(all, read(t, line).DecisionID)
	}
	return all
}

func verified(t testing.TB, dir string) journal.Report {
	t.Helper()
	report, err := journal.Verify(dir)
	if err != nil {
		t.Fatalf("the journal does not verify: %v", err)
	}
	return report
}

// fullRecord returns a record with every field that a caller sets.
func fullRecord() journal.Record {
	at := time.Date(2026, 3, 4, 5, 6, 7, 89_000_001, time.UTC)
	return journal.Record{
		DecisionID: "0195d3a4-7c1e-7d3a-9b1f-2f1f6d2f7c11", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
		Principal: journal.Principal{Tenant: "default", Subject: "laptop", Agent: "dev", Owner: "ana", TokenID: "laptop"},
		Chain:     []journal.Principal{{Tenant: "default", Subject: "planner", Agent: "planner", Owner: "ana"}},
		Session:   "9f86d081884c7d65", Run: "nightly", Server: "github", Method: "tools/call", Tool: "create_issue",
		DefinitionDigest: strings.Repeat("ab", 32), Category: "write", Risk: "medium", PolicyRevision: strings.Repeat("cd", 32),
		Rule: journal.Rule{Document: "team", Rule: "tools.create_issue"}, Effect: "allow", Code: "rate_limited",
		Hidden: true, FromServer: true, Message: "slow down",
		Limits: []journal.Limit{{
			Document: "team", Rule: "tools.create_issue", Bucket: "b1", Kind: "sliding_window", Max: "10", WindowS: 60,
			Burst: 3, Per: []string{"session", "server", "tool"}, Cap: true, Cost: "1",
			OnError: "deny", Settle: "/total", Remaining: "7", SessionKey: "run",
		}},
		ReservedAt: at, LimitLeaseID: "l1", SessionKey: "run", ApprovalID: "a1",
		ArgumentsHMAC: strings.Repeat("ef", 32), RequestBytes: 312, ResultBytes: 4096,
		ResultClass: journal.ResultToolError, UpstreamStatus: 200, LatencyMS: 12.345,
		Redacted: []journal.Redacted{{Name: "secrets", Count: 1}, {Name: "email", Count: 2}},
		Recorded: journal.Recorded{Digest: strings.Repeat("12", 32), Place: "20260304T050607.089000001:4096", Bytes: 120, IsRedacted: true},
	}
}

func TestJournal_WritesEveryFieldAndOneChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	before := time.Now()
	rec := fullRecord()
	ctx := t.Context()
	if err := errors.Join(j.Intent(ctx, &rec), j.Outcome(ctx, &rec), j.Refusal(ctx, &rec)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullRecord(), rec); diff != "" {
		t.Errorf("the caller's record was changed: %s", diff)
	}
	closeJournal(t, j)

	for chain, kinds := range map[string][]journal.Kind{
		"calls": {journal.KindIntent, journal.KindOutcome}, "refusals": {journal.KindRefusal},
	} {
		prev := strings.Repeat("0", 64)
		all := lines(t, dir, chain)
		if len(all) != len(kinds) {
			t.Fatalf("%s has %d lines, want %d", chain, len(all), len(kinds))
		}
		for i, line := range all {
			got := read(t, line)
			want := fullRecord()
			want.Seq, want.Prev, want.Kind, want.Build = int64(i+1), prev, kinds[i], "test"
			if i == 0 { // the first record of the segment
				key, err := hex.DecodeString(got.SealKey)
				if err != nil || len(key) != 32 {
					t.Errorf("%s names the key %q", chain, got.SealKey)
				}
				want.SealKey, want.Oldest = got.SealKey, 1
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(journal.Record{}, "Time", "CRC")); diff != "" {
				t.Errorf("%s, line %d: %s", chain, i+1, diff)
			}
			if got.Time.Before(before) || got.Time.After(time.Now()) || got.Time.Location() != time.UTC {
				t.Errorf("%s, line %d was written at %s", chain, i+1, got.Time)
			}
			if !strings.HasPrefix(line, fmt.Sprintf(`{"seq":%d,"time":"`, i+1)) || !strings.HasSuffix(line, `","crc":"`+got.CRC+`"}`) {
				t.Errorf("%s, line %d has its fields in another order: %s", chain, i+1, line)
			}
			sum := sha256.Sum256([]byte(line))
			prev = hex.EncodeToString(sum[:])
		}
	}
	verified(t, dir)
}

func TestJournal_OmitsEmptyFields(t *testing.T) {
	t.Parallel()
	line, err := journal.FirstLine(journal.Record{Kind: journal.KindIntent, DecisionID: "d"}, time.Unix(0, 0).UTC())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"seq":1,"time":"1970-01-01T00:00:00Z","prev":"` + strings.Repeat("0", 64) + `","kind":"intent","decision_id":"d","crc":"`
	if got := string(line[:len(line)-len(`12345678"}`)]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOutcome_IsUnknownWithoutClass(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	if err := j.Outcome(t.Context(), &journal.Record{DecisionID: "d"}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, lines(t, dir, "calls")[0]).ResultClass; got != journal.ResultUnknown {
		t.Errorf("the class is %q, want unknown", got)
	}
}

func TestJournal_RefusesRecordWithoutDecisionID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	for name, record := range map[string]func(context.Context, *journal.Record) error{
		"intent": j.Intent, "outcome": j.Outcome, "refusal": j.Refusal,
	} {
		if err := record(t.Context(), &journal.Record{}); err == nil {
			t.Errorf("an %s without a decision id is accepted", name)
		}
	}
	if got := len(lines(t, dir, "calls")) + len(lines(t, dir, "refusals")); got != 0 {
		t.Errorf("%d records were written", got)
	}
}

func TestJournal_OnlyIntentObeysCancelledContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rec := journal.Record{DecisionID: "d"}
	if err := j.Intent(ctx, &rec); !errors.Is(err, context.Canceled) {
		t.Errorf("an intent of a cancelled call returns %v", err)
	}
	if err := errors.Join(j.Outcome(ctx, &rec), j.Refusal(ctx, &rec)); err != nil {
		t.Error(err)
	}
	if calls, refusals := len(lines(t, dir, "calls")), len(lines(t, dir, "refusals")); calls != 1 || refusals != 1 {
		t.Errorf("%d calls and %d refusals were written, want one each", calls, refusals)
	}
}

func TestOpen_ContinuesChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config(dir)
	cfg.SegmentBytes = 4 << 10
	var want []string
	for round := range 5 {
		j := open(t, cfg)
		for i := range 20 {
			id := fmt.Sprintf("d-%d-%d", round, i)
			writeIntent(t, j, id)
			writeRefusal(t, j, id)
			want = append(want, id)
		}
		closeJournal(t, j)
	}
	report := verified(t, dir)
	if report.Calls.Records != 100 || report.Calls.First != 1 || report.Calls.Last != 100 || report.Calls.Segments < 3 {
		t.Errorf("the report on calls is %+v", report.Calls)
	}
	for _, chain := range []string{"calls", "refusals"} {
		if diff := cmp.Diff(want, ids(t, dir, chain)); diff != "" {
			t.Errorf("%s: %s", chain, diff)
		}
	}
	all := lines(t, dir, "calls")
	sum := sha256.Sum256([]byte(all[len(all)-1]))
	if report.Calls.Head != hex.EncodeToString(sum[:]) {
		t.Errorf("the head is %s", report.Calls.Head)
	}
}

func TestOpen_ContinuesEmptySegment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	closeJournal(t, j)
	if err := os.WriteFile(filepath.Join(dir, "calls-00000000000000000002.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	j = open(t, config(dir))
	writeIntent(t, j, "b")
	closeJournal(t, j)
	if diff := cmp.Diff([]string{"a", "b"}, ids(t, dir, "calls")); diff != "" {
		t.Error(diff)
	}
	if got := verified(t, dir).Calls.Segments; got != 2 {
		t.Errorf("there are %d segments, want 2", got)
	}
}

func TestClose_RefusesLaterRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	closeJournal(t, j)
	closeJournal(t, j)
	rec := journal.Record{DecisionID: "b"}
	for name, record := range map[string]func(context.Context, *journal.Record) error{
		"intent": j.Intent, "outcome": j.Outcome, "refusal": j.Refusal,
	} {
		if err := record(t.Context(), &rec); !errors.Is(err, journal.ErrClosed) {
			t.Errorf("an %s after Close returns %v", name, err)
		}
	}
	if !errors.Is(j.Healthy(), journal.ErrClosed) {
		t.Errorf("after Close Healthy returns %v", j.Healthy())
	}
	if got := len(lines(t, dir, "calls")); got != 1 {
		t.Errorf("there are %d records, want 1", got)
	}
}
