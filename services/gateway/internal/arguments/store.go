// Package arguments stores copies of the arguments of calls, encrypted and for a limited time. The journal contains the
// digest and the position of each copy, and this package the copy itself.
//
// The copies are in segments. Each segment has a key of its own, in another directory. When a segment expires, its key
// is removed first, so that nothing can read a backup of the segment.
package arguments

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config configures a [Store].
type Config struct {
	// Dir is the directory of the segments, and Keys the directory of their keys. They are created if they do not exist.
	// Keys must be outside Dir, so that a copy of Dir does not contain the keys.
	Dir, Keys string
	// Bytes is the maximum size of all segments: at least 1 MiB. If it is exceeded, the oldest segments are removed.
	Bytes int64
	// Share is the fraction of Bytes that the calls of one person may use: above 0, at most 1.
	Share float64
	// Age is the maximum age of a copy: at least a minute.
	Age time.Duration
	// Sync specifies that a copy is on the device before Put returns.
	Sync bool
	// Log receives messages for operators.
	Log *slog.Logger
}

// Errors of [Store.Get].
var (
	// ErrRemoved means that the copy was removed, because of its age or because the segments were too large.
	ErrRemoved = errors.New("the recorded arguments were removed, because they were too old or needed too much space")
	// ErrDamaged means that the copy is not the one that the journal describes, or that its key is missing.
	ErrDamaged = errors.New("the recorded arguments are damaged")
)

// ErrShare means that the copies of a person's calls have used the person's share of the space.
var ErrShare = errors.New("the share of the space for recorded arguments is used up")

// A Copy describes a stored copy.
type Copy struct {
	// Digest is the SHA-256 of the encrypted copy, in hex.
	Digest string
	// Place is the position of the copy: the name of its segment and an offset in bytes.
	Place string
}

// A Store stores copies. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu       sync.Mutex
	segments []*segment // oldest first
	active   *writer    // writes to the newest segment; nil if a new segment must be begun
	expire   *time.Timer
	closed   bool
}

// A segment is a file with copies.
type segment struct {
	name string
	// began is the time at which the segment was begun.
	began time.Time
	// size is the size of the file, in bytes. persons contains the part of each person.
	size    int64
	persons map[person]int64
}

const (
	extension    = ".args"
	keyExtension = ".key"
	// nameFormat is the format of the names of segments, which contain the time at which they were begun.
	nameFormat = "20060102T150405.000000000"
	// parts is the number of segments into which the age and the size of a full store are divided.
	parts = 24
	// maxSpan is the maximum time for which copies are added to one segment.
	maxSpan = time.Hour
)

var errClosed = errors.New("arguments: the store is closed")

// Open opens a store, and removes expired segments. The caller must hold a lock on the directory.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" || cfg.Keys == "" || cfg.Bytes < 1<<20 || !(cfg.Share > 0 && cfg.Share <= 1) || cfg.Age < time.Minute || cfg.Log == nil {
		return nil, errors.New("arguments: invalid configuration")
	}
	s := &Store{cfg: cfg}
	for _, dir := range []string{cfg.Dir, cfg.Keys} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create the folder of recorded arguments: %w", err)
		}
	}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of recorded arguments: %w", err)
	}
	for _, entry := range entries {
		name, isSegment := strings.CutSuffix(entry.Name(), extension)
		began, err := time.Parse(nameFormat, name)
		if !isSegment || err != nil {
			continue
		}
		one := &segment{name: name, began: began}
		if one.persons, one.size, err = scan(filepath.Join(cfg.Dir, entry.Name())); err != nil {
			return nil, fmt.Errorf("read recorded arguments: %w", err)
		}
		s.segments = append(s.segments, one)
	}
	slices.SortFunc(s.segments, func(a, b *segment) int { return cmp.Compare(a.name, b.name) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpired()
	s.removeKeys()
	return s, nil
}

// Put stores a copy of the arguments of a call. id is the id of its decision, at most 255 bytes. who identifies the
// person for whom the call is made. An error means that nothing is stored; it is an [ErrShare] if the person's share is
// used up.
func (s *Store) Put(id, who string, arguments []byte) (Copy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Copy{}, errClosed
	}
	now, owner := time.Now(), personOf(who)
	if err := s.checkShare(owner, entrySize(arguments)); err != nil {
		return Copy{}, err
	}
	if s.active == nil || now.Sub(s.newest().began) >= s.span() || s.newest().size >= s.cfg.Bytes/parts {
		if err := s.begin(now); err != nil {
			return Copy{}, fmt.Errorf("begin a segment of recorded arguments: %w", err)
		}
	}
	at := s.newest()
	entry, err := s.active.write(at.size, owner, id, arguments, s.cfg.Sync)
	if err != nil {
		return Copy{}, fmt.Errorf("record arguments: %w", errors.Join(err, s.end()))
	}
	sum := sha256.Sum256(entry)
	out := Copy{Digest: hex.EncodeToString(sum[:]), Place: fmt.Sprintf("%s:%d", at.name, at.size)}
	at.size += int64(len(entry))
	at.persons[owner] += int64(len(entry))
	s.removeOldest()
	return out, nil
}

// checkShare returns an error if a person's copies would exceed the person's share.
func (s *Store) checkShare(owner person, add int64) error {
	used := add
	for _, one := range s.segments {
		used += one.persons[owner]
	}
	if limit := int64(float64(s.cfg.Bytes) * s.cfg.Share); used > limit {
		return fmt.Errorf("%w: %d MiB", ErrShare, limit>>20)
	}
	return nil
}

// Get returns the arguments in a copy. id is the id of the decision for which the copy was stored.
func (s *Store) Get(id string, c Copy) ([]byte, error) {
	name, offset, err := parsePlace(c.Place)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock() // so that the segment is not removed meanwhile
	s.removeExpired()
	if !slices.ContainsFunc(s.segments, func(one *segment) bool { return one.name == name }) {
		return nil, ErrRemoved
	}
	entry, err := readEntry(s.path(name), offset)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(entry); hex.EncodeToString(sum[:]) != c.Digest {
		return nil, fmt.Errorf("%w: the digest in the journal is another one", ErrDamaged)
	}
	return openEntry(s.keyPath(name), id, entry)
}

// Close ends the store. It does nothing if the store is closed already.
func (s *Store) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.expire != nil {
		s.expire.Stop()
	}
	return s.end()
}

func (s *Store) path(name string) string    { return filepath.Join(s.cfg.Dir, name+extension) }
func (s *Store) keyPath(name string) string { return filepath.Join(s.cfg.Keys, name+keyExtension) }

func (s *Store) newest() *segment { return s.segments[len(s.segments)-1] }

// span returns the time for which copies are added to one segment.
func (s *Store) span() time.Duration { return min(maxSpan, s.cfg.Age/parts) }

// begin begins a new segment.
func (s *Store) begin(now time.Time) error {
	if err := s.end(); err != nil {
		return err
	}
	name := now.UTC().Format(nameFormat)
	active, err := newWriter(s.path(name), s.keyPath(name))
	if err != nil {
		return err
	}
	s.active = active
	s.segments = append(s.segments, &segment{name: name, began: now, persons: make(map[person]int64)})
	s.scheduleExpiry()
	return nil
}

// end closes the active segment.
func (s *Store) end() error {
	if s.active == nil {
		return nil
	}
	active := s.active
	s.active = nil
	return active.close()
}
