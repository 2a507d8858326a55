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

// oldest returns the oldest segment, or nil if there is none.
func (s *Store) oldest() (first *segment) {
	for _, o := range s.owners {
		if one := o.segments[0]; first == nil || one.began.Before(first.began) {
			first = one
		}
	}
	return first
}

// removeExpired removes the segments whose oldest copy has reached the maximum age, including the newer copies in these
// segments. The caller must hold the mutex.
func (s *Store) removeExpired() {
	for _, o := range s.owners {
		for len(o.segments) > 0 && time.Since(o.segments[0].began) >= s.cfg.Age {
			s.removeFirst(o)
		}
	}
	s.scheduleExpiry()
}

// scheduleExpiry starts a timer that removes the next segments when they expire, even if no more calls are made.
func (s *Store) scheduleExpiry() {
	s.expire = nil
	first := s.oldest()
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

// removeOldest removes a person's oldest segments while that person's share is exceeded. Then, while all segments
// together are too large, it removes the oldest segment of the person who uses the most space. Therefore people who use
// more space can't displace the copies of a person who uses less, however many they are. removeOldest never removes the
// segment that was just written.
func (s *Store) removeOldest(written *segment) {
	own := s.owners[written.person]
	for own.size > s.share() && own.segments[0] != written {
		s.removeEarly(own)
	}
	for s.size > s.cfg.Bytes {
		var largest *owner
		for _, o := range s.owners {
			if o.segments[0] != written && (largest == nil || goesBefore(o, largest)) {
				largest = o
			}
		}
		if largest == nil {
			return
		}
		s.removeEarly(largest)
	}
}

// goesBefore reports whether the oldest segment of owner a must be removed before the oldest segment of owner b. This
// is the case if a uses more space, or if both use the same space and a's oldest segment is older.
func goesBefore(a, b *owner) bool {
	return a.size > b.size || a.size == b.size && a.segments[0].began.Before(b.segments[0].began)
}

// removeEarly removes a person's oldest segment before it has reached the maximum age.
func (s *Store) removeEarly(o *owner) {
	s.early = time.Now()
	s.removeFirst(o)
}

// removeFirst removes a person's oldest segment. It removes the key before the file. If one of them can't be removed,
// the segment is no longer used anyway, and the next start of the gateway tries again to remove it.
func (s *Store) removeFirst(o *owner) {
	first := o.segments[0]
	s.grow(first, -first.size)
	if o.segments = o.segments[1:]; len(o.segments) == 0 {
		delete(s.owners, first.person)
	}
	for _, path := range []string{s.keyPath(first.name), s.path(first.name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.ErrorContext(context.Background(), "expired recorded arguments can't be removed; remove the file", "file", path, "error", err)
		}
	}
}

// removeKeys removes the keys that belong to no segment. Such keys can remain if the gateway is killed.
func (s *Store) removeKeys() {
	entries, err := os.ReadDir(s.cfg.Keys)
	if err != nil {
		s.cfg.Log.WarnContext(context.Background(), "the keys of recorded arguments can't be listed", "folder", s.cfg.Keys, "error", err)
		return
	}
	for _, entry := range entries {
		name, isKey := strings.CutSuffix(entry.Name(), keyExtension)
		if !isKey || s.find(name) != nil {
			continue
		}
		if err := os.Remove(filepath.Join(s.cfg.Keys, entry.Name())); err != nil {
			s.cfg.Log.WarnContext(context.Background(), "an unused key of recorded arguments can't be removed", "file", entry.Name(), "error", err)
		}
	}
}
