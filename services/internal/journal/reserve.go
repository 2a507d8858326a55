package journal

import (
	"context"
	"errors"
	"syscall"
)

// reserveBytes is how much space a chain holds behind the end of its active segment, so that records go on for a while
// when the disk is full, whoever filled it; reserveLeast is what is left of it when it is made larger again.
const (
	reserveBytes = 4 << 20
	reserveLeast = reserveBytes / 2
)

// errUnreserved is why a file can't have space reserved: its system has no way to.
var errUnreserved = errors.New("the file system can't reserve space")

// reserver is a file that can hold space behind its end.
type reserver interface {
	// reserve makes sure that the file can grow up to a size, in bytes, without more of the disk.
	reserve(size int64) error
}

// isFull reports whether an error says that the disk has no more space for this program.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// reserve makes sure that the active segment has space for the next records. The chain is short of space if the disk
// has none for that; one that can't reserve space is not. It needs writing.
func (c *chain) reserve() {
	if c.file == nil || c.reserved-c.size >= reserveLeast && !c.short.Load() {
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
	c.setShort(isFull(err))
}

// giveBack lets go of what is reserved in the active segment, which gets no more records. It needs writing.
func (c *chain) giveBack() {
	if c.reserved > c.size {
		_ = c.file.Truncate(c.size) // it is only space
	}
	c.reserved = 0
}

// lookForSpace finds out whether the disk is full, and reserves space again when it is not any more.
func (c *chain) lookForSpace() {
	full := freeSpace(c.cfg.Dir) < reserveBytes
	if full == c.short.Load() {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	switch {
	case c.closed:
	case full:
		c.setShort(c.reserved > 0)
	default:
		c.reserve()
	}
}

// setShort notes whether the disk is short of space, and tells operators of a change.
func (c *chain) setShort(short bool) {
	if c.short.Swap(short) == short {
		return
	}
	if short {
		c.cfg.Log.ErrorContext(context.Background(), "the disk is full: the journal goes on in the space that it has reserved; make room", "chain", c.name, "reserved_bytes", c.reserved-c.size)
		return
	}
	c.cfg.Log.InfoContext(context.Background(), "the disk has space for the journal again", "chain", c.name)
}

// staysFor reports whether records of so many bytes go into the active segment although it is full: a new one would
// have no space. It needs writing.
func (c *chain) staysFor(bytes int) bool {
	if file, ok := c.file.(reserver); ok && c.reserved > 0 {
		c.setShort(isFull(file.reserve(c.reserved + reserveBytes)))
	}
	return c.short.Load() && c.file != nil && c.reserved-c.size >= int64(bytes)
}

// Short reports whether the journal's disk is full: records go into the space that the journal has reserved.
func (j *Journal) Short() bool { return j.calls.short.Load() || j.refusals.short.Load() }
