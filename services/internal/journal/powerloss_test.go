package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// afterLossOfPower returns a directory with what a power failure would leave of the journal: the data that has been
// synced.
func (d *disk) afterLossOfPower(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := t.TempDir()
	for path, size := range d.synced {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(path)), text[:size])
	}
	return dir
}

// survivors simulates a power failure. It opens a journal with the given keys on the remaining data, and returns the
// journal's records of calls.
func (d *disk) survivors(t *testing.T, keys string) (all []journal.Record) {
	t.Helper()
	cfg := config(d.afterLossOfPower(t))
	cfg.Keys = keys
	j := open(t, cfg)
	for rec, err := range j.Calls(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Kind != journal.KindRecovery { // Open wrote the recovery, because the head was lost
			all = append(all, rec)
		}
	}
	closeJournal(t, j)
	verified(t, cfg.Dir)
	return all
}

// An approved call may be sent only once. Therefore its intent and all earlier records, in any segment, must survive a
// power failure. Other records are written without a sync.
func TestIntent_OfApprovedCallSurvivesLossOfPower(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{synced: map[string]int64{}}
	cfg := journal.OnDisk(config(dir), d.open)
	cfg.SegmentBytes = 4 << 10
	j := open(t, cfg)
	for n := range 40 {
		call := fullRecord()
		call.DecisionID = fmt.Sprint("approved-", n)
		if err := j.Claim(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
		for i := range n % 7 { // fills up to three segments
			writeIntent(t, j, fmt.Sprintf("free-%d-%d-%s", n, i, strings.Repeat("x", 1800)))
		}
		before := d.syncs
		if err := j.Intent(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
		if d.syncs == before {
			t.Fatalf("call %d may go out, and nothing was synced", n)
		}
		left := d.survivors(t, cfg.Keys)
		if len(left) == 0 || left[len(left)-1].DecisionID != call.DecisionID || left[len(left)-1].Kind != journal.KindIntent {
			t.Fatalf("call %d may go out, and after a loss of power its intent is not among %d records", n, len(left))
		}
		before = d.syncs
		call.ResultClass = journal.ResultOK
		if err := j.Outcome(t.Context(), &call); err != nil {
			t.Fatal(err)
		}
		if writeIntent(t, j, fmt.Sprint("free-", n)); d.syncs != before {
			t.Fatalf("a call without an approval waited for %d syncs", d.syncs-before)
		}
	}
	closeJournal(t, j)
}

// An earlier process wrote records that the operating system has not yet written to the device. Writing the intent of
// an approved call syncs these records too.
func TestIntent_SyncsRecordsOfEarlierProcess(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{synced: map[string]int64{}}
	cfg := journal.OnDisk(config(dir), d.open)
	cfg.SegmentBytes = 4 << 10
	j := open(t, cfg)
	for n := range 9 {
		writeIntent(t, j, fmt.Sprint("free-", n, strings.Repeat("x", 1800)))
	}
	closeJournal(t, j)
	j = open(t, cfg)
	call := fullRecord()
	if err := j.Intent(t.Context(), &call); err != nil {
		t.Fatal(err)
	}
	if got := len(d.survivors(t, cfg.Keys)); got != 10 {
		t.Errorf("%d of 10 records survive", got)
	}
	closeJournal(t, j)
}

func TestIntent_OfApprovedCallFailsWhenSyncFails(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{}
	j := open(t, journal.OnDisk(config(dir), d.open))
	call := fullRecord()
	if err := j.Claim(t.Context(), &call); err != nil {
		t.Fatal(err)
	}
	d.set(func(d *disk) { d.badSync = true })
	if err := j.Intent(t.Context(), &call); err == nil {
		t.Error("the intent counts, and is not on the disk for sure")
	}
	d.heal()
	closeJournal(t, j)
}
