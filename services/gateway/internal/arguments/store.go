// Package arguments stores copies of the arguments of calls, encrypted and for a limited time. The journal contains the
// digest and the position of each copy, and this package the copy itself.
//
// The copies are in segments. A segment has copies of one person's calls, so that no person displaces the copies of
// others, and a key of its own, in another directory. When a segment expires, its key is removed first, so that nothing
// can read a backup of the segment.
package arguments

import (
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Config configures a [Store].
type Config struct {
	// Dir is the directory of the segments, and Keys the directory of their keys. They are created if they do not exist.
	// Keys must be outside Dir, so that a copy of Dir does not contain the keys.
	Dir, Keys string
	// Bytes is the maximum size of all segments: at least 1 MiB. If it is exceeded, the oldest segments of
	// the person with the most are removed.
	Bytes int64
	// Share is the fraction of Bytes that the copies of one person may use: above 0, at most 1. If it is exceeded, the
	// person's oldest segments are removed.
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

// ErrNotStored means that a copy could not be stored.
var ErrNotStored = errors.New("the arguments of the call can't be recorded")

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

	mu     sync.Mutex
	owners map[person]*owner
	// size is the size of all segments.
	size int64
	// early is the time at which copies were last removed before their maximum age, or zero.
	early  time.Time
	expire *time.Timer
	closed bool
	// fault is the error of the last copy, or nil if it was stored.
	fault error
}

// An owner is a person whose calls have copies.
type owner struct {
	segments []*segment // oldest first
	// size is the size of the segments.
	size int64
}

// A segment is a file with copies of one person's calls.
type segment struct {
	name   string
	person person
	// began is the time at which the segment was begun.
	began time.Time
	// size is the size of the file, in bytes.
	size int64
	// aead encrypts copies. It is nil if no copy may be added, because an earlier process has begun the segment, or
	// because its end may be incomplete.
	aead cipher.AEAD
}

const (
	extension    = ".args"
	keyExtension = ".key"
	// parts is the number of segments into which the maximum age and a person's share are divided.
	parts = 24
)

var errClosed = errors.New("arguments: the store is closed")

// Open opens a store, and removes expired segments. The caller must hold a lock on the directory.
func Open(cfg Config) (*Store, error) {
	if cfg.Dir == "" || cfg.Keys == "" || cfg.Bytes < 1<<20 || !(cfg.Share > 0 && cfg.Share <= 1) || cfg.Age < time.Minute || cfg.Log == nil {
		return nil, errors.New("arguments: invalid configuration")
	}
	s := &Store{cfg: cfg, owners: make(map[person]*owner)}
	for _, dir := range []string{cfg.Dir, cfg.Keys} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("create the folder of recorded arguments: %w", err)
		}
	}
	entries, err := os.ReadDir(cfg.Dir) // sorted by name, and so by time
	if err != nil {
		return nil, fmt.Errorf("read the folder of recorded arguments: %w", err)
	}
	for _, entry := range entries {
		name, isSegment := strings.CutSuffix(entry.Name(), extension)
		one, ok := parseName(name)
		if !isSegment || !ok {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("read the folder of recorded arguments: %w", err)
		}
		s.add(one)
		s.grow(one, info.Size())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeExpired()
	s.removeKeys()
	return s, nil
}

// Put stores a copy of the arguments of a call. id is the id of its decision. who identifies the person for whom the
// call is made. The error is [ErrNotStored].
func (s *Store) Put(id, who string, arguments []byte) (Copy, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := s.put(id, personOf(who), arguments)
	if s.fault = err; err != nil {
		return Copy{}, fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return out, nil
}

func (s *Store) put(id string, of person, arguments []byte) (Copy, error) {
	if s.closed {
		return Copy{}, errClosed
	}
	to, err := s.activeOf(of, time.Now())
	if err != nil {
		return Copy{}, fmt.Errorf("begin a segment: %w", err)
	}
	entry, err := appendEntry(s.path(to.name), to, id, arguments, s.cfg.Sync)
	if err != nil {
		to.aead = nil
		return Copy{}, err
	}
	sum := sha256.Sum256(entry)
	out := Copy{Digest: hex.EncodeToString(sum[:]), Place: fmt.Sprintf("%s:%d", to.name, to.size)}
	s.grow(to, int64(len(entry)))
	s.removeOldest(to)
	return out, nil
}

// activeOf returns the segment to which a person's copies are added now.
func (s *Store) activeOf(of person, now time.Time) (*segment, error) {
	if o := s.owners[of]; o != nil {
		newest := o.segments[len(o.segments)-1]
		if newest.aead != nil && now.Sub(newest.began) < s.cfg.Age/parts && newest.size < s.share()/parts {
			return newest, nil
		}
	}
	one := &segment{name: nameOf(now, of), person: of, began: now}
	var err error
	if one.aead, err = create(s.path(one.name), s.keyPath(one.name)); err != nil {
		return nil, err
	}
	s.add(one)
	if s.expire == nil { // otherwise an older segment expires earlier
		s.scheduleExpiry()
	}
	return one, nil
}

// Get returns the arguments in a copy. id is the id of the decision for which the copy was stored.
func (s *Store) Get(id string, c Copy) ([]byte, error) {
	name, offset, err := parsePlace(c.Place)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock() // so that the segment is not removed meanwhile
	if one := s.find(name); one == nil || time.Since(one.began) >= s.cfg.Age {
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

// Usage describes the copies in a store.
type Usage struct {
	// Bytes is the size of the copies, and Max their maximum size.
	Bytes, Max int64
	// Oldest is the time before which copies were removed. It is zero if there are no copies.
	Oldest time.Time
	// Age is the maximum age of a copy.
	Age time.Duration
	// RemovedEarly is the time of the last removal because of a maximum size, or zero.
	RemovedEarly time.Time
}

// Usage returns a description of the copies.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Usage{Bytes: s.size, Max: s.cfg.Bytes, Age: s.cfg.Age, RemovedEarly: s.early}
	if first := s.oldest(); first != nil {
		out.Oldest = first.began
	}
	return out
}

// Fault returns the reason for which the last copy could not be stored, or nil if it was stored.
func (s *Store) Fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
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
	return nil
}

func (s *Store) path(name string) string    { return filepath.Join(s.cfg.Dir, name+extension) }
func (s *Store) keyPath(name string) string { return filepath.Join(s.cfg.Keys, name+keyExtension) }

// share returns the maximum size of one person's segments.
func (s *Store) share() int64 { return int64(float64(s.cfg.Bytes) * s.cfg.Share) }

// find returns the segment with a name, or nil if there is none.
func (s *Store) find(name string) *segment {
	named, ok := parseName(name)
	if !ok || s.owners[named.person] == nil {
		return nil
	}
	for _, one := range s.owners[named.person].segments {
		if one.name == name {
			return one
		}
	}
	return nil
}

// add adds a segment that is newer than all others of its person.
func (s *Store) add(one *segment) {
	o := s.owners[one.person]
	if o == nil {
		o = new(owner)
		s.owners[one.person] = o
	}
	o.segments = append(o.segments, one)
}

// grow adds bytes to the size of a segment.
func (s *Store) grow(one *segment, bytes int64) {
	one.size += bytes
	s.size += bytes
	s.owners[one.person].size += bytes
}
