package arguments

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// anyone selects the segments of all persons.
func anyone(*segment) bool { return true }

// oldest returns the oldest of the selected segments, or nil if there is none.
func (s *Store) oldest(selects func(*segment) bool) (first *segment) {
	for _, one := range s.segments {
		if selects(one) && (first == nil || one.began.Before(first.began)) {
			first = one
		}
	}
	return first
}

// removeExpired removes the segments whose oldest copy has reached the maximum age. The newer copies in a segment are
// removed with it. The caller must hold the mutex.
func (s *Store) removeExpired() {
	for _, one := range s.segments {
		if time.Since(one.began) >= s.cfg.Age {
			s.remove(one)
		}
	}
	s.scheduleExpiry()
}

// scheduleExpiry removes expired segments when the next one expires, also if there are no calls.
func (s *Store) scheduleExpiry() {
	if s.expire != nil {
		s.expire.Stop()
	}
	first := s.oldest(anyone)
	if first == nil || s.closed {
		return
	}
	s.expire = time.AfterFunc(max(time.Until(first.began.Add(s.cfg.Age)), 0), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			s.removeExpired()
		}
	})
}

// removeOldest removes the oldest segments of a person until the person's share is not exceeded, and the oldest segments
// of all until the maximum size is not exceeded. It does not remove the segment to which a copy was just added.
func (s *Store) removeOldest(added *segment) {
	ofOwner := func(one *segment) bool { return one.owner == added.owner && one != added }
	for s.sizes[added.owner] > s.share() && s.removeEarly(ofOwner) {
	}
	for s.size > s.cfg.Bytes && s.removeEarly(func(one *segment) bool { return one != added }) {
	}
}

// removeEarly removes the oldest of the selected segments. It reports whether there was one.
func (s *Store) removeEarly(selects func(*segment) bool) bool {
	one := s.oldest(selects)
	if one == nil {
		return false
	}
	s.early = time.Now()
	s.remove(one)
	return true
}

// remove removes a segment: its key first. A segment whose files can't be removed is not used any more, and the next
// start tries again.
func (s *Store) remove(one *segment) {
	s.grow(one, -one.size)
	delete(s.segments, one.name)
	if s.active[one.owner] == one {
		delete(s.active, one.owner)
	}
	for _, path := range []string{s.keyPath(one.name), s.path(one.name)} {
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
		if !isKey || s.segments[name] != nil {
			continue
		}
		if err := os.Remove(filepath.Join(s.cfg.Keys, entry.Name())); err != nil {
			s.cfg.Log.WarnContext(context.Background(), "an unused key of recorded arguments can't be removed", "file", entry.Name(), "error", err)
		}
	}
}
