package journal

import (
	"context"
	"errors"
	"syscall"
)

// reserveBytes is the disk space that a chain reserves after the end of its active segment. When the disk is full,
// records can still be written into this space.
//
// If less than minReserve of the reserved space is left, the chain reserves more.
const (
	reserveBytes = 4 << 20
	minReserve   = reserveBytes / 2
)

// errUnreserved means that the operating system or the file system can't reserve space.
var errUnreserved = errors.New("the file system can't reserve space")

type reserver interface {
	// reserve allocates disk space for the file up to a length of size bytes.
	reserve(size int64) error
}

// isFull reports whether an error means that this program can't get more disk space.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// reserve makes sure that the active segment has space for the next records. If the disk is full, reserve sets
// diskFull. If the file system can't reserve space at all, reserve does not set diskFull. The caller must hold writeMu.
func (c *chain) reserve() {
	if c.file == nil || c.reserved-c.size >= minReserve && !c.diskFull.Load() {
		return
	}
	file, ok := c.file.(reserver)
	if !ok {
		return
	}
	err := file.reserve(c.size + reserveBytes)
	if err == nil {
		c.reserved = c.size + reserveBytes
	}
	c.setDiskFull(isFull(err))
}

// releaseReserve releases the reserved space of the active segment. No more records may be written to the segment after
// that. The caller must hold writeMu.
func (c *chain) releaseReserve() {
	if c.reserved > c.size {
		_ = c.file.Truncate(c.size) // if this fails, it only wastes space
	}
	c.reserved = 0
}

// checkSpace checks whether the disk is full. If it was full and has space again, checkSpace reserves space.
func (c *chain) checkSpace() {
	full := freeSpace(c.cfg.Dir) < reserveBytes
	if full == c.diskFull.Load() {
		return
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	switch {
	case c.closed:
	case full:
		c.setDiskFull(c.reserved > 0)
	default:
		c.reserve()
	}
}

func (c *chain) setDiskFull(short bool) {
	if c.diskFull.Swap(short) == short {
		return
	}
	if short {
		c.cfg.Log.ErrorContext(context.Background(), "the disk is full: the journal writes to its reserved space; free disk space", "chain", c.name, "reserved_bytes", c.reserved-c.size)
		return
	}
	c.cfg.Log.InfoContext(context.Background(), "the disk has space for the journal again", "chain", c.name)
}

// fitsReserve reports whether records of the given size must be written to the active segment although the segment is
// full. This is the case if the disk has no space for a new segment. The caller must hold writeMu.
func (c *chain) fitsReserve(bytes int) bool {
	if file, ok := c.file.(reserver); ok && c.reserved > 0 {
		c.setDiskFull(isFull(file.reserve(c.reserved + reserveBytes)))
	}
	return c.diskFull.Load() && c.file != nil && c.reserved-c.size >= int64(bytes)
}

// DiskFull reports whether the journal's disk is full. While it is, records are written to the reserved space.
func (j *Journal) DiskFull() bool { return j.calls.diskFull.Load() || j.refusals.diskFull.Load() }
