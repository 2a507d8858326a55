package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/norace"
)

// sampleJournal creates a journal with five calls and one refusal, in segments of the given size. It returns the
// journal's directory.
func sampleJournal(t testing.TB, segmentBytes int64) string {
	t.Helper()
	return sampleJournalOf(t, segmentBytes, 5)
}

// sampleJournalOf creates a journal with the given number of calls and one refusal. It returns the journal's directory.
func sampleJournalOf(t testing.TB, segmentBytes int64, calls int) string {
	t.Helper()
	dir := t.TempDir()
	cfg := config(dir)
	cfg.SegmentBytes = segmentBytes
	j := open(t, cfg)
	rec := fullRecord()
	for i := range calls {
		rec.DecisionID = fmt.Sprint("d", i)
		if err := errors.Join(j.Intent(t.Context(), &rec), j.Outcome(t.Context(), &rec)); err != nil {
			t.Fatal(err)
		}
	}
	writeRefusal(t, j, "r")
	closeJournal(t, j)
	return dir
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t testing.TB, path string, at int, b byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{b}, int64(at))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestVerify_DetectsFlipOfEveryByte(t *testing.T) {
	t.Parallel()
	dir := sampleJournalOf(t, 4<<10, 4)
	paths := append(files(t, dir, "calls"), files(t, dir, "refusals")...)
	if len(paths) < 4 {
		t.Fatalf("there are %d segments only", len(paths))
	}
	for _, path := range paths {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(good); at += len(good) / norace.Some(len(good)) {
			overwrite(t, path, at, good[at]^1<<(at%8))
			_, err := journal.Verify(dir)
			overwrite(t, path, at, good[at])
			var broken *journal.BrokenError
			if !errors.As(err, &broken) {
				t.Fatalf("byte %d of %s was changed unseen: %v", at, filepath.Base(path), err)
			}
			// If the newline of a line was changed, that line and the next line are read as one line.
			if line := bytes.Count(good[:at], []byte("\n")) + 1; broken.File != filepath.Base(path) || broken.Line != line {
				t.Fatalf("byte %d of %s, line %d, was changed; the error names %s, line %d",
					at, filepath.Base(path), line, broken.File, broken.Line)
			}
		}
	}
	verified(t, dir)
}

func TestVerify_DetectsRearrangedLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(lines []string) []string
		line   int
		why    string
	}{
		"a record dropped":    {func(l []string) []string { return slices.Delete(l, 1, 2) }, 2, "a record is missing, moved or repeated"},
		"a record repeated":   {func(l []string) []string { return slices.Insert(l, 1, l[0]) }, 2, "a record is missing, moved or repeated"},
		"two records swapped": {func(l []string) []string { l[0], l[1] = l[1], l[0]; return l }, 1, "a record is missing, moved or repeated"},
		"the first dropped":   {func(l []string) []string { return l[1:] }, 1, "a record is missing"},
		"an empty line":       {func(l []string) []string { return slices.Insert(l, 1, "\n") }, 2, "not a complete record"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := sampleJournal(t, 16<<20)
			path := files(t, dir, "calls")[0]
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, []byte(strings.Join(c.change(slices.Collect(strings.Lines(string(text)))), "")))
			_, err = journal.Verify(dir)
			var broken *journal.BrokenError
			if !errors.As(err, &broken) || broken.File != filepath.Base(path) || broken.Line != c.line || !strings.Contains(err.Error(), c.why) {
				t.Errorf("the error is %v, want one about line %d with %q", err, c.line, c.why)
			}
		})
	}
}

func TestVerify_DetectsForgedRecordAtNextRecord(t *testing.T) {
	t.Parallel()
	dir := sampleJournal(t, 4<<10)
	path := files(t, dir, "calls")[0]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	rec := read(t, string(first))
	rec.Tool = "harmless"
	forged, err := journal.FirstLine(rec, rec.Time)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, slices.Concat(forged, []byte("\n"), rest))
	_, err = journal.Verify(dir)
	var broken *journal.BrokenError
	if !errors.As(err, &broken) || broken.Line != 2 || !strings.Contains(err.Error(), "one of the two was changed") {
		t.Errorf("the error is %v", err)
	}
}

func TestVerifyAndOpen_DetectMissingSegment(t *testing.T) {
	t.Parallel()
	dir := sampleJournalOf(t, 4<<10, 4)
	paths := files(t, dir, "calls")
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}
	_, err := journal.Verify(dir)
	var broken *journal.BrokenError
	if !errors.As(err, &broken) || broken.File != filepath.Base(paths[2]) || broken.Line != 1 {
		t.Errorf("Verify returns %v", err)
	}
	if _, err := journal.Open(config(dir)); !errors.As(err, &broken) {
		t.Errorf("Open returns %v", err)
	}
}

func TestOpen_CutsIncompleteRecordAtEveryByte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	closeJournal(t, j)
	head, err := os.ReadFile(filepath.Join(dir, "head.json")) // after the process is killed, the head may be a second old
	if err != nil {
		t.Fatal(err)
	}
	j = open(t, config(dir))
	writeIntent(t, j, "b")
	closeJournal(t, j)
	path := files(t, dir, "calls")[0]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	keys := keysOf(dir)
	start := bytes.IndexByte(text, '\n') + 1
	for end := start; end < len(text); end += (len(text) - start) / norace.Some(len(text)-start) {
		dir := t.TempDir()
		cfg := config(dir)
		cfg.Keys = keys // new keys would have to be synced, which is slow
		write(t, filepath.Join(dir, filepath.Base(path)), text[:end])
		write(t, filepath.Join(dir, "head.json"), head)
		j := open(t, cfg)
		writeIntent(t, j, "c")
		closeJournal(t, j)
		verified(t, dir)
		if end == start {
			if diff := cmp.Diff([]string{"a", "c"}, ids(t, dir, "calls")); diff != "" {
				t.Fatalf("cut to %d bytes: %s", end, diff)
			}
			continue
		}
		if diff := cmp.Diff([]string{"a", "", "c"}, ids(t, dir, "calls")); diff != "" {
			t.Fatalf("cut to %d bytes: %s", end, diff)
		}
		rec := read(t, lines(t, dir, "calls")[1])
		if rec.Kind != journal.KindRecovery || rec.CutBytes != int64(end-start) {
			t.Fatalf("cut to %d bytes: the recovery is %+v", end, rec)
		}
		saved, err := os.ReadFile(filepath.Join(dir, rec.CutFile))
		if err != nil || !bytes.Equal(saved, text[start:end]) {
			t.Fatalf("cut to %d bytes: %q was saved: %v", end, saved, err)
		}
	}
}

// Repeated crashes leave an incomplete line at the end of the segment. Each time, Open removes the incomplete line.
func TestOpen_CutsIncompleteEndRepeatedly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	writeRefusal(t, j, "r")
	closeJournal(t, j)
	hole := string(make([]byte, 512))
	for i, end := range []string{"{", `{"seq":`, `{"seq":%d,"time":"20`, "\x00\x00\x00", `{"seq":%d,"ti` + hole + "x\n" + `{"seq`} {
		for _, chain := range []string{"calls", "refusals"} {
			path := files(t, dir, chain)[0]
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, append(text, strings.ReplaceAll(end, "%d", fmt.Sprint(i+2))...))
		}
		if report := verified(t, dir); report.Calls.Incomplete == 0 || report.Refusals.Incomplete == 0 {
			t.Errorf("%.30q at the end is not seen: %+v", end, report)
		}
		closeJournal(t, open(t, config(dir)))
		report := verified(t, dir)
		if want := int64(2 + i); report.Calls.Records != want || report.Refusals.Records != want || report.Calls.Incomplete != 0 {
			t.Errorf("%.30q: there are %d and %d records, want %d", end, report.Calls.Records, report.Refusals.Records, want)
		}
	}
}

// Case X10. The end of a chain is damaged in a way that a crash can't cause. Open returns an error.
func TestOpen_RefusesDamagedEnd(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"a flipped bit":        func(b []byte) []byte { b[len(b)-40] ^= 1; return b },
		"a flipped newline":    func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"an empty line":        func(b []byte) []byte { return append(b, '\n') },
		"a line of its own":    func(b []byte) []byte { return append(b, "{}\n{}\n{\"seq\""...) },
		"words":                func(b []byte) []byte { return append(b, "rm -rf"...) },
		"another place":        func(b []byte) []byte { return append(b, `{"seq":9,"time":"20`...) },
		"a line without a CRC": func(b []byte) []byte { return append(b[:len(b)-20], '\n') },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := sampleJournal(t, 16<<20)
			path := files(t, dir, "calls")[0]
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			write(t, path, damage(text))
			_, err = journal.Verify(dir)
			var broken *journal.BrokenError
			if !errors.As(err, &broken) || broken.File != filepath.Base(path) || broken.Line < 10 || broken.Seq != int64(broken.Line) {
				t.Errorf("Verify returns %v", err)
			}
			if _, err := journal.Open(config(dir)); !errors.As(err, &broken) {
				t.Errorf("Open returns %v", err)
			}
		})
	}
}

func TestOpen_RefusesChainBrokenInMiddle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	for _, id := range []string{"a", "b", "c"} {
		writeIntent(t, j, id)
	}
	closeJournal(t, j)
	path := files(t, dir, "calls")[0]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, bytes.Replace(text, []byte(`"decision_id":"b"`), []byte(`"decision_id":"x"`), 1))
	_, err = journal.Open(config(dir))
	var broken *journal.BrokenError
	if !errors.As(err, &broken) || broken.File != filepath.Base(path) || broken.Line != 2 {
		t.Fatalf("the error is %v", err)
	}
	for _, want := range []string{dir, "line 2", "move the files calls-*"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if got, _ := os.ReadFile(path); len(got) != len(text) {
		t.Error("the file was changed")
	}
}

func TestOpen_RefusesChainWhoseOnlyRecordIsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "calls-00000000000000000007.jsonl"), []byte(`{"seq":7,`))
	var broken *journal.BrokenError
	if _, err := journal.Open(config(dir)); !errors.As(err, &broken) {
		t.Errorf("the error is %v", err)
	}
}

func TestOpen_IgnoresOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{
		"calls-1.jsonl", "calls-0000000000000000000x.jsonl", "calls-00000000000000000000.jsonl", "calls.jsonl",
		"calls-00000000000000000001.jsonl.bak", "notes.txt",
	}
	for _, name := range names {
		write(t, filepath.Join(dir, name), []byte("mine"))
	}
	j := open(t, config(dir))
	writeIntent(t, j, "a")
	closeJournal(t, j)
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != "mine" {
			t.Errorf("%s holds %q: %v", name, text, err)
		}
	}
	if got := verified(t, dir).Calls.Records; got != 1 {
		t.Errorf("there are %d records, want 1", got)
	}
}
