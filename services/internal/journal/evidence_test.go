package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// copied copies a directory and returns the path of the copy.
func copied(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func writeCalls(t testing.TB, cfg journal.Config, n int) {
	t.Helper()
	j := open(t, cfg)
	for i := range n {
		writeIntent(t, j, fmt.Sprint("d", i))
	}
	closeJournal(t, j)
}

func smallConfig(dir string) journal.Config {
	cfg := config(dir)
	cfg.SegmentBytes = 4 << 10
	return cfg
}

// cutTail removes the last n complete records of a chain from its files.
func cutTail(t testing.TB, dir, chain string, n int) {
	t.Helper()
	paths := files(t, dir, chain)
	for _, path := range slices.Backward(paths) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Collect(strings.Lines(string(text)))
		if len(all) > n {
			write(t, path, []byte(strings.Join(all[:len(all)-n], "")))
			return
		}
		n -= len(all)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// Case X10. The files are changed by an attacker without the key. Verify detects each change and names the first wrong
// record.
func TestVerify_NamesFirstWrongRecord(t *testing.T) {
	t.Parallel()
	original := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, smallConfig(original), 100)
	head := verified(t, original).Head
	names := files(t, original, "calls")
	begins := func(i int) (seq int64) {
		if _, err := fmt.Sscanf(filepath.Base(names[i]), "calls-%d.jsonl", &seq); err != nil {
			t.Fatal(err)
		}
		return seq
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		seq    int64
		want   string
	}{
		"a cut tail":             {func(t *testing.T, dir string) { cutTail(t, dir, "calls", 3) }, 98, "it was sealed, and was cut off since"},
		"the newest segment":     {func(t *testing.T, dir string) { cutTail(t, dir, "calls", 30) }, 71, "up to record 100 is missing"},
		"all segments":           {func(t *testing.T, dir string) { cutTail(t, dir, "calls", 100) }, 1, "up to record 100 is missing"},
		"the oldest segment":     {func(t *testing.T, dir string) { remove(t, files(t, dir, "calls")[0]) }, 1, "no record says that they were pruned"},
		"a segment between":      {func(t *testing.T, dir string) { remove(t, files(t, dir, "calls")[1]) }, begins(1), "are missing, because a segment"},
		"a torn end that is cut": {func(t *testing.T, dir string) { cutLastRecord(t, dir) }, 100, "up to record 100 is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := copied(t, original)
			c.change(t, dir)
			_, err := journal.Verify(dir)
			var broken *journal.BrokenError
			if !errors.As(err, &broken) || broken.Seq != c.seq || broken.File == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Verify returns %v, want record %d and %q", err, c.seq, c.want)
			}
		})
	}
	t.Run("an older copy shows with a head that was stored elsewhere", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "journal")
		writeCalls(t, smallConfig(dir), 50)
		older := copied(t, dir)
		writeCalls(t, smallConfig(dir), 50)
		newer := verified(t, dir).Head
		verified(t, older)
		if _, err := journal.Verify(dir, *newer); err != nil {
			t.Errorf("the journal itself: %v", err)
		}
		_, err := journal.Verify(older, *newer)
		var broken *journal.BrokenError
		if !errors.As(err, &broken) || broken.Seq != 51 || !strings.Contains(err.Error(), "an older copy") {
			t.Errorf("the older copy: %v", err)
		}
		if _, err := journal.Verify(dir, *verified(t, older).Head); err != nil {
			t.Errorf("an older head: %v", err)
		}
	})
	t.Run("a rewritten journal", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "journal")
		writeCalls(t, smallConfig(dir), 100)
		_, err := journal.Verify(dir, *head)
		if err == nil || !strings.Contains(err.Error(), "not the one that was sealed") || !strings.Contains(err.Error(), "a key other than") {
			t.Errorf("Verify returns %v", err)
		}
	})
	t.Run("no head, and a head of another's", func(t *testing.T) {
		t.Parallel()
		dir := copied(t, original)
		cutTail(t, dir, "calls", 3)
		remove(t, filepath.Join(dir, "head.json"))
		if _, err := journal.Verify(dir); err == nil || !strings.Contains(err.Error(), "head.json is missing") {
			t.Errorf("without a head: %v", err)
		}
		// Without the journal's key, an attacker can sign a head only with another key.
		forger := smallConfig(copied(t, dir))
		closeJournal(t, open(t, forger))
		forged, err := os.ReadFile(filepath.Join(forger.Dir, "head.json"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "head.json"), forged)
		if _, err := journal.Verify(dir); err == nil || !strings.Contains(err.Error(), "a key other than") {
			t.Errorf("with another's: %v", err)
		}
		write(t, filepath.Join(dir, "head.json"), []byte(strings.Replace(head.String(), `"count":100`, `"count":97`, 1)))
		if _, err := journal.Verify(dir); err == nil || !strings.Contains(err.Error(), "signature") {
			t.Errorf("with a changed head: %v", err)
		}
	})
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// cutLastRecord truncates the file within the last record.
func cutLastRecord(t testing.TB, dir string) {
	t.Helper()
	paths := files(t, dir, "calls")
	path := paths[len(paths)-1]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, text[:len(text)-50])
}

// Case X10. Records are removed from the end of a journal. When the journal is opened again, it records the loss,
// continues and signs a new head.
func TestOpen_RecordsMissingRecords(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, config(dir), 10)
	head := verified(t, dir).Head
	cutTail(t, dir, "calls", 4)
	writeCalls(t, config(dir), 1)
	verified(t, dir)
	rec := read(t, lines(t, dir, "calls")[6])
	if rec.Kind != journal.KindRecovery || rec.Count != 4 || !strings.Contains(rec.Message, "records 7 to 10 were sealed and are missing") || !strings.Contains(rec.Message, head.Calls.Hash) {
		t.Errorf("the record is %+v", rec)
	}
	if _, err := journal.Verify(dir, *head); err == nil {
		t.Error("the head of before does not show it")
	}
	// The rewritten end has the same number of records, but with different content.
	forged := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, config(forged), 20)
	text, err := os.ReadFile(files(t, forged, "calls")[0])
	if err != nil {
		t.Fatal(err)
	}
	write(t, files(t, dir, "calls")[0], text)
	closeJournal(t, open(t, config(dir)))
	if got := messages(t, dir, "calls"); len(got) == 0 || !strings.Contains(got[len(got)-1], "is not the one that was sealed") {
		t.Errorf("the recoveries are %q", got)
	}
}

// Case X10. A head is signed within one second after a record is written. If there are no new records, no head is
// signed.
func TestHead_IsSignedEachSecondAndLoggedEachHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, log := t.TempDir(), &logged{}
		cfg := config(dir)
		cfg.Log = slog.New(slog.NewJSONHandler(log, nil))
		j := open(t, cfg)
		if h := j.Head(); h == nil || h.Calls.Count != 0 || h.Check() != nil {
			t.Fatalf("at first the head is %v", h)
		}
		writeIntent(t, j, "a")
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		first := j.Head()
		if first.Calls.Count != 1 || first.Refusals.Count != 0 || first.Check() != nil {
			t.Fatalf("after a second the head is %v", first)
		}
		path := filepath.Join(dir, "head.json")
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) || j.Head() != first {
			t.Errorf("a head was signed although nothing was written: %v", err)
		}
		writeRefusal(t, j, "b")
		closeJournal(t, j)
		heads := log.heads(t)
		if n := len(heads); n != 4 || heads[1] != *first || heads[3].Refusals.Count != 1 {
			t.Errorf("the log has %v", heads)
		}
		for _, h := range heads {
			if _, err := journal.Verify(dir, h); err != nil {
				t.Errorf("the head %v: %v", h, err)
			}
		}
	})
}

// logged is a log that is kept in memory.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logged) heads(t testing.TB) []journal.Head {
	t.Helper()
	path := filepath.Join(t.TempDir(), "heads")
	write(t, path, []byte(l.String()))
	heads, err := journal.ReadHeads(path)
	if err != nil {
		t.Fatal(err)
	}
	return heads
}

func TestReadHeads_AcceptsFilesAndLogs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, config(dir), 1)
	head := verified(t, dir).Head
	if back := journal.HeadFromProto(journal.HeadToProto(head)); *back != *head || back.Check() != nil {
		t.Errorf("over gRPC the head becomes %v", back)
	}
	for name, c := range map[string]struct {
		text string
		want int
	}{
		"the file":        {head.String() + "\n", 1},
		"lines of a log":  {"x {1 " + head.String() + " y\nmore\nz " + head.String() + "\n", 2},
		"inside of JSON":  {`{"ready":true,"journalHead":` + head.String() + `}`, 1},
		"nothing":         {"", 0},
		"something else":  {`{"time":"2026-01-01T00:00:00Z"} {`, 0},
		"half of a head":  {head.String()[:100], 0},
		"no JSON at all ": {"{{{{", 0},
	} {
		path := filepath.Join(t.TempDir(), "head")
		write(t, path, []byte(c.text))
		got, err := journal.ReadHeads(path)
		if len(got) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d heads, %v", name, len(got), err)
		}
		for _, h := range got {
			if h != *head {
				t.Errorf("%s: the head is %v", name, h)
			}
		}
	}
}

// Case X10. An older segment is damaged. The check finds the damage while the journal is in use, and reports it.
func TestCheck_ReportsDamageInOlderSegments(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, smallConfig(dir), 100)
	checked := func(log io.Writer) journal.Check {
		cfg := smallConfig(dir)
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
		j := open(t, cfg)
		defer closeJournal(t, j)
		for !j.Check().Done {
			select {
			case <-t.Context().Done():
				t.Fatal("the check does not end")
			case <-time.After(time.Millisecond):
			}
		}
		writeIntent(t, j, "on")
		return j.Check()
	}
	whole := len(files(t, dir, "calls")) - 1
	if got := checked(io.Discard); got.Segments != whole || got.Records < 60 || len(got.Broken) > 0 {
		t.Errorf("with %d segments the check is %+v", whole, got)
	}
	path := files(t, dir, "calls")[1]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, len(text)/2, text[len(text)/2]^1)
	log := &logged{}
	got := checked(log)
	var broken *journal.BrokenError
	if got.Segments != 1 || len(got.Broken) != 1 || !errors.As(got.Broken[0], &broken) || broken.File != filepath.Base(path) {
		t.Errorf("with a flipped bit the check is %+v", got)
	}
	if !strings.Contains(log.String(), "journal is broken") || !strings.Contains(log.String(), filepath.Base(path)) {
		t.Errorf("the log is %s", log)
	}
}

// Case X5. Retention removes segments, and records name the removed segments. Therefore Verify can distinguish the
// segments that retention removed from segments that an attacker removed.
func TestPrune_RecordsRemovedSegments(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	cfg := smallConfig(dir)
	cfg.Calls.Bytes = 16 << 10
	all := map[string]journal.Pruned{}
	j := open(t, cfg)
	for i := range 200 {
		writeIntent(t, j, fmt.Sprint("d", i))
		for _, line := range lines(t, dir, "calls") {
			for _, pruned := range read(t, line).Pruned {
				all[pruned.File] = pruned
			}
		}
	}
	closeJournal(t, j)
	report := verified(t, dir)
	next := int64(1)
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range all {
			if !yield(name) {
				return
			}
		}
	}) {
		pruned := all[name]
		if pruned.First != next || pruned.Last < pruned.First || pruned.Reason != journal.PrunedForSize || len(pruned.Hash) != 64 || pruned.Bytes == 0 {
			t.Errorf("%s: the record has %+v, and %d is next", name, pruned, next)
		}
		next = pruned.Last + 1
	}
	if next != report.Calls.First || next == 1 {
		t.Errorf("according to the records, records up to %d were pruned, but %d is the oldest", next-1, report.Calls.First)
	}
	// Remove one more segment, without a record that names it.
	remove(t, files(t, dir, "calls")[0])
	var broken *journal.BrokenError
	if _, err := journal.Verify(dir); !errors.As(err, &broken) || broken.Seq != next || !strings.Contains(err.Error(), "no record says that they were pruned") {
		t.Errorf("after a segment was removed Verify returns %v", err)
	}
}

func TestOpen_ContinuesJournalOfEarlierVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ first, calls, refusals int64 }{
		"whole": {1, 24, 12}, "pruned": {16, 9, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := copied(t, filepath.Join("testdata", "earlier", name))
			report := verified(t, dir)
			if report.Calls.First != c.first || report.Calls.Records != c.calls || report.Refusals.Records != c.refusals || report.Calls.SealKey != "" {
				t.Errorf("the report is %+v", report)
			}
			key, err := os.ReadFile(filepath.Join(dir, "hmac.key"))
			if err != nil {
				t.Fatal(err)
			}
			j := open(t, smallConfig(dir))
			found, err := j.Find(t.Context(), "d11")
			if err != nil || len(found) != 3 {
				t.Errorf("of a decision there are %d records: %v", len(found), err)
			}
			writeIntent(t, j, "on")
			closeJournal(t, j)
			report = verified(t, dir)
			if report.Calls.Records != c.calls+1 || report.Calls.First != c.first || report.Calls.SealKey == "" || report.Head.Calls.Count != report.Calls.Last {
				t.Errorf("after one more call the report is %+v", report)
			}
			if moved, err := os.ReadFile(filepath.Join(keysOf(dir), "hmac.key")); err != nil || !bytes.Equal(moved, key) {
				t.Errorf("the key was not moved: %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "hmac.key")); !os.IsNotExist(err) {
				t.Errorf("the key is still in the journal's folder: %v", err)
			}
			// A record that was added to the journal of an earlier version is protected like all others: if it is
			// missing, this is detected.
			cutTail(t, dir, "calls", 1)
			if _, err := journal.Verify(dir); err == nil {
				t.Error("a cut tail is not seen")
			}
		})
	}
}
