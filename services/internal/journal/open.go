package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const incompleteExtension = ".torn"

// load reads the end of the chain from the disk and prepares the chain for writing.
func (c *chain) load(ctx context.Context) error {
	segments, err := listSegments(c.cfg.Dir, c.name)
	if err != nil || len(segments) == 0 {
		return err
	}
	c.segments = segments
	first := segments[0].first
	c.pos = link{seq: first - 1, unknown: first > 1}
	for i := range segments {
		s := &segments[i]
		if err := s.checkFollows(c.pos); err != nil {
			return c.withAdvice(err)
		}
		if i == len(segments)-1 {
			return c.loadLast(ctx, s)
		}
		rec, end, err := s.lastRecord()
		if err != nil {
			return c.withAdvice(err)
		}
		s.last, s.hash, s.newest, c.pos = rec.Seq, end.hash, rec.Time, end
	}
	return nil
}

// loadLast checks the newest segment, removes an incomplete line at its end, and opens the segment for writing.
func (c *chain) loadLast(ctx context.Context, s *segment) error {
	data, err := s.read()
	if err != nil {
		return err
	}
	key := c.sealKey
	good, lines, err := walk(data, &c.pos, func(rec *Record, at link, size int) {
		if c.usage.limit > 0 {
			c.usage.charge(appendAccounts(nil, rec), int64(size))
		}
		if s.last, s.newest = rec.Seq, rec.Time; rec.Seq == s.first {
			key = rec.SealKey
		}
		if at.seq == c.sealed.Count && at.hexHash() != c.sealed.Hash {
			c.recordRewritten(at)
		}
	})
	s.hash = c.pos.hash
	if err != nil && !isIncomplete(data[good:], c.pos.seq+1) {
		return c.withAdvice(s.brokenAt(lines+1, c.pos, err))
	}
	if c.pos.unknown {
		return c.withAdvice(s.broken(1, errors.New("is missing, and so are all records before it")))
	}
	c.file, err = c.cfg.open(s.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	c.size = s.size
	defer c.reserve()
	if good < len(data) {
		if err := c.cutIncomplete(ctx, s, data, good); err != nil {
			return err
		}
	}
	if c.size > 0 && key != c.sealKey { // the segment does not name the current key, so the next record begins a segment that does
		err = c.file.Close()
		c.file = nil
	}
	return err
}

// withAdvice adds advice for an operator to an error about a broken chain.
func (c *chain) withAdvice(err error) error {
	return fmt.Errorf("the chain of %s is broken: %w; to start a new chain, move the files %s-* to another place and keep them for review",
		c.name, err, c.name)
}

// cutIncomplete moves the end of a segment, which begins at the given offset, to a separate file. It queues a record
// that names the file.
func (c *chain) cutIncomplete(ctx context.Context, s *segment, data []byte, good int) error {
	torn := data[good:]
	path, err := saveIncomplete(s.path, torn)
	if err != nil {
		return fmt.Errorf("save the torn end of %s: %w", filepath.Base(s.path), err)
	}
	c.size, s.size = int64(good), int64(good)
	if err := errors.Join(c.file.Truncate(c.size), c.file.Sync()); err != nil {
		return fmt.Errorf("cut the torn end off %s: %w", filepath.Base(s.path), err)
	}
	name := filepath.Base(path)
	c.cfg.Log.WarnContext(ctx, "journal had a torn end", "chain", c.name, "cut_bytes", len(torn), "cut_file", name)
	c.queueStartRecord(&Record{Message: "a torn end was cut off", CutBytes: int64(len(torn)), CutFile: name})
	return nil
}

// queueStartRecord queues a record about a problem that was found when the journal was opened. This record is written
// before any other record.
func (c *chain) queueStartRecord(rec *Record) {
	c.queueRecovery(rec)
	c.downErr.Store(new(fmt.Errorf("%w: problems that were found when it was opened are not recorded yet", ErrUnavailable)))
}

// recordMissing queues a record if the newest head refers to records that are missing. Such records were lost in a
// power failure, or an attacker removed them.
func (c *chain) recordMissing(ctx context.Context) {
	if c.sealed.Count <= c.pos.seq {
		return
	}
	missing := c.sealed.Count - c.pos.seq
	c.cfg.Log.ErrorContext(ctx, "journal's newest records are missing: power was lost, or they were cut off, or an older copy was put in its place",
		"chain", c.name, "first", c.pos.seq+1, "last", c.sealed.Count)
	c.queueStartRecord(&Record{Message: fmt.Sprintf("records %d to %d were sealed and are missing; the head had the hash %s", c.pos.seq+1, c.sealed.Count, c.sealed.Hash), Count: missing})
}

// recordRewritten queues a record about a rewritten chain. In such a chain, the record to which the head refers was
// replaced with another record that has the same sequence number.
func (c *chain) recordRewritten(at link) {
	c.cfg.Log.ErrorContext(context.Background(), "journal is not the one that was sealed", "chain", c.name, "seq", at.seq)
	c.queueStartRecord(&Record{Message: fmt.Sprintf("record %d is not the one that was sealed, which had the hash %s", at.seq, c.sealed.Hash)})
}

// saveIncomplete saves data in a new file next to a segment.
func saveIncomplete(segment string, data []byte) (string, error) {
	for n := 1; ; n++ {
		path := fmt.Sprintf("%s.%d%s", segment, n, incompleteExtension)
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = f.Write(data)
		return path, errors.Join(err, f.Sync(), f.Close())
	}
}
