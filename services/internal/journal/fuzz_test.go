package journal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func FuzzParse(f *testing.F) {
	line, err := journal.FirstLine(fullRecord(), fullRecord().ReservedAt)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.TrimSuffix(line, []byte(`,"crc":"`+read(f, string(line)).CRC+`"}`)))
	f.Add([]byte(`{"seq":1,"kind":"intent"`))
	f.Add([]byte(`{"seq":1,"kind":"intent","seq":2`))
	f.Add([]byte(`{"tool":"\u202e\ud83d\ude42","window_s":1e300`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := journal.Parse(text); err == nil && len(text) < 18 {
			t.Fatalf("%q is no record", text)
		}
		line := journal.WithCRC(text)
		rec, err := journal.Parse(line)
		if err != nil {
			return
		}
		// A record that was read can be written again without changing its meaning.
		again, err := journal.FirstLine(rec, rec.Time)
		if err != nil || len(line) > 4<<10 { // longer strings are truncated
			return
		}
		back, err := journal.Parse(again)
		if err != nil {
			t.Fatalf("%q was written as %q: %v", line, again, err)
		}
		rec.Seq, rec.Prev, rec.CRC = back.Seq, back.Prev, back.CRC
		if diff := cmp.Diff(rec, back, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	})
}

func FuzzOpen(f *testing.F) {
	dir := sampleJournal(f, 4<<10)
	path := files(f, dir, "refusals")[0]
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	keys := keysOf(dir)
	f.Add([]byte(nil))
	f.Add([]byte("{"))
	f.Add([]byte("\n"))
	f.Add(good)
	f.Add(append([]byte("x\n"), good...))
	f.Fuzz(func(t *testing.T, more []byte) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, filepath.Base(path)), append(bytes.Clone(good), more...))
		cfg := config(dir)
		cfg.Keys = keys // new keys would have to be synced, which is slow
		j, err := journal.Open(cfg)
		if err != nil {
			if !errors.As(err, new(*journal.BrokenError)) {
				t.Fatalf("the error names no record: %v", err)
			}
			return
		}
		writeRefusal(t, j, "next")
		closeJournal(t, j)
		verified(t, dir)
		all := ids(t, dir, "refusals")
		if all[0] != "r" || all[len(all)-1] != "next" {
			t.Errorf("the decisions are %v", all)
		}
	})
}
