package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const tornExtension = ".torn"

// load finds out where the chain stands on disk and makes it ready to go on.
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
		if s.first != c.pos.seq+1 {
			return c.wayOut(s.broken(1, fmt.Errorf("should have seq %d: a segment is missing, or its end is", c.pos.seq+1)))
		}
		if i == len(segments)-1 {
			return c.loadLast(ctx, s)
		}
		rec, end, err := s.ending()
		if err != nil {
			return c.wayOut(err)
		}
		s.last, s.newest, c.pos = rec.Seq, rec.Time, end
	}
	return nil
}

// loadLast checks the newest segment, cuts off a torn end, and opens the segment.
func (c *chain) loadLast(ctx context.Context, s *segment) error {
	data, err := s.read()
	if err != nil {
		return err
	}
	good, lines, err := walk(data, &c.pos, func(rec Record) { s.last, s.newest = rec.Seq, rec.Time })
	if err != nil && (!errors.Is(err, errUnreadable) || anyReadable(data[good:])) {
		return c.wayOut(s.broken(lines+1, err))
	}
	if c.pos.unknown {
		return c.wayOut(s.broken(1, errors.New("is missing, and so are all records before it")))
	}
	c.file, err = c.cfg.open(s.path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	if good == len(data) {
		c.size = s.size
		return nil
	}
	return c.cut(ctx, s, data, good)
}

// wayOut adds to an error about a broken chain what an operator can do.
func (c *chain) wayOut(err error) error {
	return fmt.Errorf("the chain of %s is broken: %w; to start a new chain, move the files %s-* to another place and keep them for review",
		c.name, err, c.name)
}

// anyReadable says whether one of the lines is a record.
func anyReadable(data []byte) bool {
	for line := range linesOf(data) {
		if _, err := parse(line); err == nil {
			return true
		}
	}
	return false
}

// cut moves what stands behind the good bytes of a segment into a file of its own,
// and leaves a record about it to be written.
func (c *chain) cut(ctx context.Context, s *segment, data []byte, good int) error {
	torn := data[good:]
	path, err := writeTorn(s.path, torn)
	if err != nil {
		return fmt.Errorf("save the torn end of %s: %w", filepath.Base(s.path), err)
	}
	c.size, s.size = int64(good), int64(good)
	if err := errors.Join(c.file.Truncate(c.size), c.file.Sync()); err != nil {
		return fmt.Errorf("cut the torn end off %s: %w", filepath.Base(s.path), err)
	}
	name := filepath.Base(path)
	c.cfg.Log.WarnContext(ctx, "journal had a torn end", "chain", c.name, "cut_bytes", len(torn), "cut_file", name)
	c.note(&Record{Message: "a torn end was cut off", CutBytes: int64(len(torn)), CutFile: name})
	c.down.Store(new(fmt.Errorf("%w: its recovery is not recorded yet", ErrUnavailable)))
	return nil
}

// writeTorn saves data beside a segment under a name that is still free.
func writeTorn(segment string, data []byte) (string, error) {
	for n := 1; ; n++ {
		path := fmt.Sprintf("%s.%d%s", segment, n, tornExtension)
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
