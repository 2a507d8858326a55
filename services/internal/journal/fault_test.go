package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/journal"
)

var errBroken = errors.New("the disk is broken")

// disk is a fake disk whose failures the test controls.
type disk struct {
	mu sync.Mutex
	// If full is true, at most room more bytes can be written. The last write may then be partial.
	full                          bool
	room                          int
	badOpen, badSync, badTruncate bool
	// If only is empty, full applies to all files. Otherwise full applies only to the files of the chain with this
	// name.
	only          string
	writes, syncs int
	synced        map[string]int64
	// onSync is called at the beginning of each sync.
	onSync func()
}

type diskFile struct {
	*os.File
	disk *disk
}

func (d *disk) open(name string, flag int, perm fs.FileMode) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.badOpen {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	f, err := os.OpenFile(name, flag, perm)
	return &diskFile{File: f, disk: d}, err
}

func (f *diskFile) Write(b []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.writes++
	spared := !strings.HasPrefix(filepath.Base(f.Name()), f.disk.only)
	if !f.disk.full || spared {
		return f.File.Write(b)
	}
	if len(b) <= f.disk.room {
		f.disk.room -= len(b)
		return f.File.Write(b)
	}
	n, err := f.File.Write(b[:f.disk.room])
	f.disk.room = 0
	return n, errors.Join(err, syscall.ENOSPC)
}

func (f *diskFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.badTruncate {
		return errBroken
	}
	return f.File.Truncate(size)
}

func (f *diskFile) Sync() error {
	if f.disk.onSync != nil {
		f.disk.onSync()
	}
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if f.disk.badSync {
		return errBroken
	}
	info, err := f.Stat()
	if err == nil && f.disk.synced != nil {
		f.disk.synced[f.Name()] = info.Size()
	}
	return err
}

func (d *disk) set(change func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *disk) heal() {
	d.set(func(d *disk) { d.full, d.badOpen, d.badSync, d.badTruncate = false, false, false, false })
}

// messages returns the messages of the recovery records in a chain.
func messages(t testing.TB, dir, chain string) []string {
	t.Helper()
	var all []string
	for _, line := range lines(t, dir, chain) {
		if rec := read(t, line); rec.Kind == journal.KindRecovery {
			all = append(all, rec.Message)
		}
	}
	return all
}

func TestIntent_IsRefusedWhileDiskFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sync     journal.Sync
		fault    func(*disk)
		segments int
	}{
		"full":                      {journal.SyncNever, func(d *disk) { d.full, d.room = true, 100 }, 1},
		"full to the last byte":     {journal.SyncNever, func(d *disk) { d.full, d.room = true, 0 }, 1},
		"full and synced":           {journal.SyncAlways, func(d *disk) { d.full, d.room = true, 100 }, 1},
		"full and nothing cut":      {journal.SyncNever, func(d *disk) { d.full, d.room, d.badTruncate = true, 100, true }, 1},
		"not syncing":               {journal.SyncAlways, func(d *disk) { d.badSync = true }, 2},
		"not syncing and not cut":   {journal.SyncAlways, func(d *disk) { d.badSync, d.badTruncate = true, true }, 2},
		"not syncing, then no room": {journal.SyncAlways, func(d *disk) { d.badSync, d.badOpen = true, true }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir, d := t.TempDir(), &disk{}
				cfg := journal.OnDisk(config(dir), d.open)
				cfg.Sync = c.sync
				j := open(t, cfg)
				writeIntent(t, j, "before")

				d.set(c.fault)
				rec := journal.Record{DecisionID: "refused"}
				for range 3 {
					if err := j.Intent(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
						t.Fatalf("an intent returns %v", err)
					}
					if got := len(files(t, dir, "calls")); got != 1 {
						t.Fatalf("there are %d segments before the first is mended", got)
					}
					if !d.badTruncate {
						verified(t, dir) // the incomplete line is removed immediately
					}
					time.Sleep(time.Second)
				}
				rec.DecisionID = "before"
				if err := j.Outcome(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
					t.Fatalf("an outcome returns %v", err)
				}
				if err := j.Healthy(); !errors.Is(err, journal.ErrUnavailable) {
					t.Fatalf("Healthy returns %v", err)
				}

				d.heal()
				time.Sleep(300 * time.Millisecond)
				synctest.Wait()
				if err := j.Healthy(); err != nil {
					t.Fatalf("with a working disk Healthy returns %v", err)
				}
				writeIntent(t, j, "after")
				closeJournal(t, j)
				if diff := cmp.Diff([]string{"before", "", "before", "after"}, ids(t, dir, "calls")); diff != "" {
					t.Error(diff)
				}
				if got := messages(t, dir, "calls"); len(got) != 1 || !strings.HasPrefix(got[0], "records could not be written: ") || strings.Contains(got[0], dir) {
					t.Errorf("the recoveries say %q", got)
				}
				if got := verified(t, dir).Calls.Segments; got != c.segments {
					t.Errorf("there are %d segments, want %d", got, c.segments)
				}
			})
		})
	}
}

func TestIntent_ReplacesNewSegmentAfterFailedSync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		cfg := journal.OnDisk(config(dir), d.open)
		cfg.Sync = journal.SyncAlways
		j := open(t, cfg)
		d.set(func(d *disk) { d.badSync = true })
		if err := j.Intent(t.Context(), &journal.Record{DecisionID: "a"}); err == nil {
			t.Fatal("a record that can't be synced is accepted")
		}
		d.heal()
		time.Sleep(time.Second)
		writeIntent(t, j, "b")
		closeJournal(t, j)
		if diff := cmp.Diff([]string{"", "b"}, ids(t, dir, "calls")); diff != "" {
			t.Error(diff)
		}
		if got := verified(t, dir).Calls.Segments; got != 1 {
			t.Errorf("there are %d segments, want 1", got)
		}
	})
}

func TestIntent_IsRefusedWhileRefusalsCannotBeRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		j := open(t, journal.OnDisk(config(dir), d.open))
		writeRefusal(t, j, "a")
		d.set(func(d *disk) { d.full, d.room, d.only = true, 0, "refusals" })
		rec := journal.Record{DecisionID: "b"}
		if err := j.Refusal(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
			t.Errorf("a refusal returns %v", err)
		}
		if err := j.Intent(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
			t.Errorf("an intent returns %v", err)
		}
		if err := j.Outcome(t.Context(), &rec); err != nil {
			t.Errorf("an outcome returns %v", err)
		}
		d.heal()
		time.Sleep(time.Second)
		writeIntent(t, j, "c")
		writeRefusal(t, j, "d")
		closeJournal(t, j)
		if diff := cmp.Diff([]string{"a", "", "", "d"}, ids(t, dir, "refusals")); diff != "" {
			t.Error(diff)
		}
		verified(t, dir)
	})
}

func TestOutcome_IsCountedAsLostWhenBacklogIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		j := open(t, journal.OnDisk(config(dir), d.open))
		writeIntent(t, j, "a")
		d.set(func(d *disk) { d.full, d.room = true, 0 })
		text := strings.Repeat("x", 60<<10)
		const all = 600 // 559 of them fit into 32 MiB
		for i := range all {
			rec := journal.Record{DecisionID: fmt.Sprint("d", i), PolicyRevision: text}
			if err := j.Outcome(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
				t.Fatalf("an outcome returns %v", err)
			}
		}
		d.heal()
		time.Sleep(time.Second)
		closeJournal(t, j)
		var outcomes, lost int64
		for _, line := range lines(t, dir, "calls") {
			switch rec := read(t, line); rec.Kind {
			case journal.KindOutcome:
				outcomes++
			case journal.KindRecovery:
				lost += rec.Count
			}
		}
		if outcomes+lost != all || lost == 0 {
			t.Errorf("%d outcomes are stored and %d lost of %d", outcomes, lost, all)
		}
		verified(t, dir)
	})
}

// The disk is full for 20 s, and refusals can't be written. Each refusal adds its field Count to the number of lost
// refusals. One record reports the whole loss.
func TestRefusal_IsCountedAsLostWhileDiskFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		j := open(t, journal.OnDisk(config(dir), d.open))
		writeRefusal(t, j, "a")
		d.set(func(d *disk) { d.full, d.room = true, 0 })
		for i := range 20 {
			rec := journal.Record{DecisionID: fmt.Sprint("d", i), Count: int64(i)} // a Count of 0 counts as one
			if err := j.Refusal(t.Context(), &rec); !errors.Is(err, journal.ErrUnavailable) {
				t.Fatalf("a refusal returns %v", err)
			}
			time.Sleep(time.Second)
		}
		d.heal()
		time.Sleep(time.Second)
		writeRefusal(t, j, "b")
		closeJournal(t, j)
		if diff := cmp.Diff([]string{"a", "", "", "b"}, ids(t, dir, "refusals")); diff != "" {
			t.Error(diff)
		}
		rec := read(t, lines(t, dir, "refusals")[2])
		if rec.Kind != journal.KindRecovery || rec.Count != 191 || !strings.Contains(rec.Message, "191 refusals were lost") {
			t.Errorf("the recovery is %+v", rec)
		}
		verified(t, dir)
	})
}

func TestClose_ReportsLostRefusals(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{}
	j := open(t, journal.OnDisk(config(dir), d.open))
	d.set(func(d *disk) { d.full, d.room = true, 0 })
	for range 7 {
		if err := j.Refusal(t.Context(), &journal.Record{DecisionID: "a"}); err == nil {
			t.Fatal("the refusal is accepted")
		}
	}
	if err := j.Close(); err == nil || !strings.Contains(err.Error(), "7 refusals are lost") {
		t.Errorf("Close returns %v", err)
	}
}

func TestClose_ReportsLostRecords(t *testing.T) {
	t.Parallel()
	dir, d := t.TempDir(), &disk{}
	j := open(t, journal.OnDisk(config(dir), d.open))
	writeIntent(t, j, "a")
	d.set(func(d *disk) { d.full, d.room = true, 0 })
	if err := j.Outcome(t.Context(), &journal.Record{DecisionID: "a"}); err == nil {
		t.Fatal("the outcome is accepted")
	}
	j.Admission("unauthenticated", "192.0.2.1")
	err := j.Close()
	if err == nil || !strings.Contains(err.Error(), "of calls are lost") || !strings.Contains(err.Error(), "counts of refused requests") {
		t.Errorf("Close returns %v", err)
	}
	verified(t, dir)
}

func TestClose_WritesBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, d := t.TempDir(), &disk{}
		j := open(t, journal.OnDisk(config(dir), d.open))
		writeIntent(t, j, "a")
		d.set(func(d *disk) { d.full, d.room = true, 0 })
		if err := j.Outcome(t.Context(), &journal.Record{DecisionID: "a"}); err == nil {
			t.Fatal("the outcome is accepted")
		}
		d.heal()
		closeJournal(t, j) // before the journal retries
		if diff := cmp.Diff([]string{"a", "", "a"}, ids(t, dir, "calls")); diff != "" {
			t.Error(diff)
		}
	})
}
