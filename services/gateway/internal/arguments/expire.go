package arguments

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// removeExpired removes the segments whose oldest copy has reached the maximum age. The newer copies in a segment are
// removed with it, so a copy is stored for at least the maximum age minus the span of a segment. The caller must hold
// the mutex.
func (s *Store) removeExpired() {
	for len(s.segments) > 0 && time.Since(s.segments[0].began) >= s.cfg.Age {
		s.removeFirst()
	}
	s.scheduleExpiry()
}

// scheduleExpiry removes expired segments when the next one expires, also if there are no calls.
func (s *Store) scheduleExpiry() {
	if s.expire != nil {
		s.expire.Stop()
	}
	if len(s.segments) == 0 || s.closed {
		return
	}
	s.expire = time.AfterFunc(max(time.Until(s.segments[0].began.Add(s.cfg.Age)), 0), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.removeExpired()
		}
	})
}

// removeOldest removes the oldest segments until the size is within its limit. It does not remove the newest one.
func (s *Store) removeOldest() {
	var size int64
	for _, one := range s.segments {
		size += one.size
	}
	for size > s.cfg.Bytes && len(s.segments) > 1 {
		size -= s.segments[0].size
		s.removeFirst()
	}
}

// removeFirst removes the oldest segment: its key first. A segment whose files can't be removed is not used any more,
// and the next start tries again.
func (s *Store) removeFirst() {
	first := s.segments[0]
	if len(s.segments) == 1 && s.active != nil {
		if err := s.end(); err != nil {
			s.cfg.Log.WarnContext(context.Background(), "a segment of recorded arguments can't be closed", "segment", first.name, "error", err)
		}
	}
	s.segments = slices.Delete(s.segments, 0, 1)
	for _, path := range []string{s.keyPath(first.name), s.path(first.name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.ErrorContext(context.Background(), "expired recorded arguments can't be removed; remove the file", "file", path, "error", err)
		}
	}
}

// removeKeys removes the keys that belong to no segment, which a process that was killed may have left.
func (s *Store) removeKeys() {
	entries, err := os.ReadDir(s.cfg.Keys)
	if err != nil {
		s.cfg.Log.WarnContext(context.Background(), "the keys of recorded arguments can't be listed", "folder", s.cfg.Keys, "error", err)
		return
	}
	for _, entry := range entries {
		name, isKey := strings.CutSuffix(entry.Name(), keyExtension)
		if !isKey || slices.ContainsFunc(s.segments, func(one *segment) bool { return one.name == name }) {
			continue
		}
		if err := os.Remove(filepath.Join(s.cfg.Keys, entry.Name())); err != nil {
			s.cfg.Log.WarnContext(context.Background(), "an unused key of recorded arguments can't be removed", "file", entry.Name(), "error", err)
		}
	}
}
