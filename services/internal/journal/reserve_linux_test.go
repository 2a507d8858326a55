package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Another program fills the disk and later frees space. Meanwhile, the journal continues to write records.
func TestJournal_WritesIntoReserveWhenDiskIsFull(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("a small file system can't be mounted: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 0) })
	cfg := config(filepath.Join(dir, "journal"))
	cfg.SegmentBytes = 1 << 20 // a segment ends while the disk is full
	j := open(t, cfg)
	writeIntent(t, j, "before")
	fill := filepath.Join(dir, "fill")
	fillUp(t, fill)
	for i := range 8000 {
		writeIntent(t, j, fmt.Sprintf("full-%d", i))
	}
	eventually.Holds(t, "the journal says that the disk is full", j.DiskFull)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "the journal says that there is room", func() bool { return !j.DiskFull() })
	writeIntent(t, j, "after")
	closeJournal(t, j)
	if n := len(ids(t, cfg.Dir, "calls")); n != 8002 {
		t.Errorf("%d records of calls are there, not 8002", n)
	}
	verified(t, cfg.Dir)
}

func fillUp(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
