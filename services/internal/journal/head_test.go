package journal_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case X10. An attacker can write to the directory, but does not have the key. The attacker removes the head or signs
// it with another key. When the journal is opened, it records this problem before it signs the next head.
func TestOpen_RecordsMissingOrForeignHead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"none": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "head.json")) }, "head.json is missing"},
		"another key's": {func(t *testing.T, dir string) {
			forger := copied(t, dir)
			remove(t, filepath.Join(forger, "head.json"))
			writeCalls(t, config(forger), 0)
			text, err := os.ReadFile(filepath.Join(forger, "head.json"))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "head.json"), text)
		}, "sealed with a key other than"},
		"one that is half written": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "head.json"), nil) }, "read head.json"},
	} {
		t.Run("X10 "+name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "journal")
			writeCalls(t, config(dir), 10)
			cutTail(t, dir, "calls", 4)
			c.change(t, dir)
			writeCalls(t, config(dir), 1)
			for chain, at := range map[string]int{"calls": 6, "refusals": 0} {
				rec := read(t, lines(t, dir, chain)[at])
				if rec.Kind != journal.KindRecovery || !strings.Contains(rec.Message, "missing before this one is not known: ") || !strings.Contains(rec.Message, c.want) {
					t.Errorf("the record of %s is %+v", chain, rec)
				}
			}
			writeCalls(t, config(dir), 1)
			if got := messages(t, dir, "calls"); len(got) != 1 {
				t.Errorf("a later Open records %q", got)
			}
		})
	}
	t.Run("X10 a journal that begins", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "journal")
		writeCalls(t, config(dir), 1)
		if got := messages(t, dir, "calls"); len(got) != 0 {
			t.Errorf("the recovery records are %q", got)
		}
	})
}

// Case X10. The journal was rewritten and then continued, so the record to which the head refers is in an older
// segment. The check reports that this record was changed.
func TestCheck_ComparesOlderSegmentsWithHead(t *testing.T) {
	t.Parallel()
	dir, anew := filepath.Join(t.TempDir(), "journal"), filepath.Join(t.TempDir(), "anew")
	writeCalls(t, smallConfig(dir), 50)
	writeCalls(t, smallConfig(anew), 200)
	for _, path := range files(t, dir, "calls") {
		remove(t, path)
	}
	for _, path := range files(t, anew, "calls") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(path)), text)
	}
	j := open(t, smallConfig(dir))
	for !j.Check().Done {
		runtime.Gosched()
	}
	if broken := j.Check().Broken; len(broken) != 1 || !strings.Contains(broken[0].Error(), "record 50, is not the one that was sealed") {
		t.Errorf("the check found %v", broken)
	}
	closeJournal(t, j)
	if got := messages(t, dir, "calls"); len(got) != 1 || !strings.Contains(got[0], "record 50, is not the one that was sealed") {
		t.Errorf("the recoveries are %q", got)
	}
}
