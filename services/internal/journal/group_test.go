package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestIntent_ConcurrentCallersShareWriteAndSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		hold, begun := make(chan struct{}), make(chan struct{}, 10)
		d.onSync = func() { begun <- struct{}{}; <-hold }
		cfg := journal.OnDisk(config(dir), d.open)
		cfg.Sync = journal.SyncAlways
		j := open(t, cfg)

		var all sync.WaitGroup
		all.Go(func() { writeIntent(t, j, "first") })
		<-begun
		for i := range 300 {
			all.Go(func() { writeIntent(t, j, fmt.Sprint("d", i)) })
		}
		synctest.Wait() // all of them wait while the first group is synced
		close(hold)
		all.Wait()
		if d.writes != 3 || d.syncs != 3 {
			t.Errorf("301 records were written with %d writes and %d syncs, want 3: groups of 1, 256 and 44", d.writes, d.syncs)
		}
		if got := verified(t, dir).Calls.Records; got != 301 {
			t.Errorf("there are %d records, want 301", got)
		}
	})
}

func TestIntent_IsSyncedBeforeItReturns(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{synced: map[string]int64{}}
	cfg := journal.OnDisk(config(dir), d.open)
	cfg.Sync = journal.SyncAlways
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	var all sync.WaitGroup
	for caller := range 16 {
		all.Go(func() {
			for i := range 20 {
				id := fmt.Sprintf("d-%d-%d", caller, i)
				writeIntent(t, j, id)
				if !d.holds(t, id) {
					t.Errorf("%s was acknowledged and is not synced", id)
				}
			}
		})
	}
	all.Wait()
	closeJournal(t, j)
	if got := verified(t, dir).Calls.Records; got != 16*20 {
		t.Errorf("there are %d records, want %d", got, 16*20)
	}
}

// holds reports whether the synced records contain the decision with the given id.
func (d *disk) holds(t testing.TB, id string) bool {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, size := range d.synced {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return false
		}
		if bytes.Contains(text[:size], []byte(`"decision_id":"`+id+`"`)) {
			return true
		}
	}
	return false
}

func TestIntent_ConcurrentCallersFormOneChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config(dir)
	cfg.SegmentBytes = 32 << 10
	j := open(t, cfg)
	const callers, each = 32, 100
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				id := fmt.Sprintf("d-%d-%d", caller, i)
				writeIntent(t, j, id)
				if i%2 == 0 {
					writeRefusal(t, j, id)
				}
			}
		})
	}
	all.Wait()
	closeJournal(t, j)
	report := verified(t, dir)
	if report.Calls.Records != callers*each || report.Refusals.Records != callers*each/2 {
		t.Errorf("there are %d calls and %d refusals", report.Calls.Records, report.Refusals.Records)
	}
	// The records of each caller must be in the order in which the caller wrote them.
	next := map[string]int{}
	for _, id := range ids(t, dir, "calls") {
		var caller, i int
		if _, err := fmt.Sscanf(id, "d-%d-%d", &caller, &i); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint(caller)
		if i != next[key] {
			t.Fatalf("caller %d has record %d where %d is due", caller, i, next[key])
		}
		next[key]++
	}
}
