package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// size returns the number of bytes that a chain's segments use.
func size(t testing.TB, dir, chain string) int64 {
	t.Helper()
	var total int64
	for _, path := range files(t, dir, chain) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	return total
}

func TestPrune_RefusalsNeverDisplaceCalls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config(dir)
	cfg.SegmentBytes = 4 << 10
	cfg.Refusals.Bytes = 16 << 10
	j := open(t, cfg)
	for i := range 20 {
		writeIntent(t, j, fmt.Sprint("c", i))
	}
	for i := range 2000 {
		writeRefusal(t, j, fmt.Sprint("r", i))
		if got := size(t, dir, "refusals"); got > cfg.Refusals.Bytes {
			t.Fatalf("refusals take %d bytes", got)
		}
	}
	closeJournal(t, j)
	report := verified(t, dir)
	if report.Calls.Records != 20 || report.Calls.First != 1 {
		t.Errorf("the report on calls is %+v", report.Calls)
	}
	if r := report.Refusals; r.Last <= 2000 || r.First == 1 || r.Segments < 3 || r.Records != r.Last-r.First+1 {
		t.Errorf("the report on refusals is %+v", r)
	}
	// The chain must continue after the stored records.
	j = open(t, cfg)
	writeRefusal(t, j, "last")
	closeJournal(t, j)
	if got := verified(t, dir).Refusals.Last; got != report.Refusals.Last+1 {
		t.Errorf("the last refusal has seq %d", got)
	}
}

// The name of the directory contains glob metacharacters. The package must not use the name as a pattern.
func TestPrune_RemovesOldSegments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "[calls")
		cfg := config(dir)
		cfg.SegmentBytes = 4 << 10
		cfg.Calls.Age = time.Hour
		j := open(t, cfg)
		for i := range 80 {
			writeIntent(t, j, fmt.Sprint("d", i))
		}
		old := files(t, dir, "calls")
		torn := old[0] + ".1.torn"
		write(t, torn, []byte("x"))
		time.Sleep(59 * time.Minute)
		if got := files(t, dir, "calls"); len(got) != len(old) || len(old) < 3 {
			t.Fatalf("after 59 minutes there are %d of %d segments", len(got), len(old))
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		// The newest record names the removed segments, so it is not removed itself.
		if got := lines(t, dir, "calls"); len(got) > 40 || read(t, got[len(got)-1]).Kind != journal.KindPruned {
			t.Errorf("after 62 minutes the lines are %v", got)
		}
		if _, err := os.Stat(torn); !os.IsNotExist(err) {
			t.Errorf("what was cut off an old segment stays: %v", err)
		}
		writeIntent(t, j, "more")
		closeJournal(t, j)
		verified(t, dir)
		if got := ids(t, dir, "calls"); got[len(got)-1] != "more" {
			t.Errorf("the decisions are %v", got)
		}
	})
}

func TestPrune_KnowsAgeAfterRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := config(dir)
		cfg.SegmentBytes = 4 << 10
		cfg.Calls.Age = time.Hour
		j := open(t, cfg)
		for i := range 80 {
			writeIntent(t, j, fmt.Sprint("d", i))
		}
		closeJournal(t, j)
		time.Sleep(2 * time.Hour)
		open(t, cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := files(t, dir, "calls"); len(got) != 1 {
			t.Errorf("there are %d segments, want 1", len(got))
		}
		verified(t, dir)
	})
}

func TestPrune_KeepsNewestSegmentWithRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		cfg := journal.OnDisk(config(dir), d.open)
		cfg.SegmentBytes = 4 << 10
		cfg.Calls.Age = time.Hour
		j := open(t, cfg)
		rec := journal.Record{DecisionID: "a", ArgumentsHMAC: strings.Repeat("x", 3<<10)}
		if err := j.Intent(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
		d.set(func(d *disk) { d.full, d.room = true, 0 })
		if err := j.Intent(t.Context(), &rec); err == nil {
			t.Fatal("a full disk takes a record")
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := files(t, dir, "calls"); len(got) != 2 {
			t.Fatalf("the segments are %v", got)
		}
		j.Close()
		j = open(t, config(dir))
		writeIntent(t, j, "b")
		closeJournal(t, j)
		if got := verified(t, dir).Calls; got.Last != 2 {
			t.Errorf("the report is %+v", got)
		}
	})
}

func TestAdmission_WritesOneRecordPerCodePeerAndMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		j := open(t, config(dir))
		start := time.Now()
		for range 1000 {
			j.Admission("unauthenticated", "192.0.2.1")
			j.Admission("unauthenticated", "192.0.2.2")
		}
		j.Admission("host_refused", "192.0.2.1")
		if got := len(files(t, dir, "refusals")); got != 0 {
			t.Fatal("counts are written at once")
		}
		time.Sleep(61 * time.Second)
		synctest.Wait()
		type count struct {
			code, peer string
			n          int64
		}
		var got []count
		for _, line := range lines(t, dir, "refusals") {
			rec := read(t, line)
			if rec.Kind != journal.KindAdmission || !rec.Since.Equal(start) || rec.Build != "test" {
				t.Errorf("the record is %+v", rec)
			}
			got = append(got, count{rec.Code, rec.Peer, rec.Count})
		}
		want := []count{
			{"host_refused", "192.0.2.1", 1}, {"unauthenticated", "192.0.2.1", 1000}, {"unauthenticated", "192.0.2.2", 1000},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the counts are %v, want %v", got, want)
		}
		j.Admission("unauthenticated", "192.0.2.1")
		closeJournal(t, j)
		if got := verified(t, dir).Refusals.Records; got != 4 {
			t.Errorf("after Close there are %d records, want 4", got)
		}
		if got := len(files(t, dir, "calls")); got != 0 {
			t.Errorf("there are %d segments of calls", got)
		}
	})
}

// Case N2. In each minute, 256 peers are counted separately for each code. Further peers are counted together.
func TestAdmission_CountsFurtherPeersTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, config(dir))
	for i := range 10_000 {
		j.Admission("unauthenticated", fmt.Sprintf("2001:db8::%x", i))
	}
	j.Admission("host_refused", "192.0.2.1")
	closeJournal(t, j)
	var sum, other int64
	for _, line := range lines(t, dir, "refusals") {
		rec := read(t, line)
		sum += rec.Count
		switch {
		case rec.Peer == "*":
			other = rec.Count
		case rec.Code == "host_refused" && rec.Peer != "192.0.2.1":
			t.Errorf("the peer of a code with one peer is %q", rec.Peer)
		}
	}
	if n := verified(t, dir).Refusals.Records; n != 258 || sum != 10_001 || other != 10_000-256 {
		t.Errorf("%d records count %d requests, %d of them of other peers", n, sum, other)
	}
}

func TestAdmission_KeepsCountsWhenDiskIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{full: true}
		j := open(t, journal.OnDisk(config(dir), d.open))
		j.Admission("unauthenticated", "192.0.2.1")
		time.Sleep(61 * time.Second)
		j.Admission("unauthenticated", "192.0.2.1")
		time.Sleep(60 * time.Second)
		d.heal()
		time.Sleep(60 * time.Second)
		closeJournal(t, j)
		var sum int64
		for _, line := range lines(t, dir, "refusals") {
			sum += read(t, line).Count
		}
		if sum != 2 {
			t.Errorf("%d requests are counted, want 2", sum)
		}
		if got, err := filepath.Glob(filepath.Join(dir, "*.torn")); err != nil || len(got) != 0 {
			t.Errorf("the admissions are %v: %v", got, err)
		}
	})
}

// An old segment can't be removed. Later segments are not removed either, because a chain with a gap can't be opened.
func TestPrune_StopsAtSegmentThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	writeCalls(t, smallConfig(dir), 100)
	stuck := files(t, dir, "calls")[0] + ".1.torn" // it is removed with the segment, unless it is a directory with files
	if err := os.MkdirAll(filepath.Join(stuck, "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := smallConfig(dir)
	cfg.Calls.Bytes = 2 * cfg.SegmentBytes
	writeCalls(t, cfg, 30)
	if r := verified(t, dir).Calls; r.First != 1 {
		t.Errorf("records before %d were removed", r.First)
	}
	if err := os.RemoveAll(stuck); err != nil {
		t.Fatal(err)
	}
	writeCalls(t, cfg, 30)
	verified(t, dir)
	if got := size(t, dir, "calls"); got > cfg.Calls.Bytes {
		t.Errorf("after the segment can be removed, calls use %d bytes", got)
	}
}
