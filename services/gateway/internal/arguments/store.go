// Package arguments stores encrypted copies of the arguments of calls for a limited time. The journal contains the
// digest and the position of each copy, and this package stores the copy itself.
//
// The copies are stored in segments. Each segment contains only copies of one person's calls, so that removing a
// segment for lack of space affects only that person. Each segment has its own key, which is stored in another
// directory. When a segment expires, its key is removed first, so that a backup of the segment can no longer be
// decrypted.
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
	// Dir is the directory of the segments, and Keys is the directory of the segments' keys. Both are created if they
	// do not exist. Keys must be outside Dir, so that a backup of Dir does not contain the keys.
	Dir, Keys string
	// Bytes limits the size of all segments together. It must be at least 1 MiB. If the limit is exceeded, the store
	// removes the oldest segments of the person who uses the most space.
	Bytes int64
	// Share is the fraction of Bytes that one person's copies may use. It must be above 0 and at most 1. If the copies
	// use more, the store removes the person's oldest segments.
	Share float64
	// Age is how long a copy is stored at most. It must be at least a minute.
	Age time.Duration
	// Sync makes Put wait until the copy is on the storage device.
	Sync bool
	// Log receives messages for operators.
	Log *slog.Logger
}

// [Store.Get] returns these errors. Compare them with errors.Is.
var (
	// ErrRemoved means that the copy was removed because it was too old or because the copies used too much space.
	ErrRemoved = errors.New("the recorded arguments were removed, because they were too old or needed too much space")
	// ErrDamaged means that the stored data does not match the journal, or that the key is missing or invalid.
	ErrDamaged = errors.New("the recorded arguments are damaged")
)

// ErrNotStored means that a copy could not be stored.
var ErrNotStored = errors.New("the arguments of the call can't be recorded")

// A Copy is the position and the digest of a stored copy.
type Copy struct {
	// Digest is the SHA-256 of the encrypted copy, in hexadecimal digits.
	Digest string
	// Place is the position of the copy. It consists of the name of the segment and an offset in bytes.
	Place string
}

// A Store stores copies of call arguments. It is safe for concurrent use.
type Store struct {
	cfg Config

	mu     sync.Mutex
	owners map[person]*owner
	// size is the total size of all segments, in bytes.
	size int64
	// early is the last time when copies were removed before they had reached their maximum age. It is zero if no
	// copies were removed early.
	early  time.Time
	expire *time.Timer
	closed bool
	// fault is the error that occurred when the most recent copy was stored, or nil if there was no error.
	fault error
}

// An owner is a person for whose calls copies are stored.
type owner struct {
	segments []*segment // oldest first
	// size is the total size of the owner's segments, in bytes.
	size int64
}

// A segment is a file with copies of one person's calls.
type segment struct {
	name   string
	person person
	// began is the time when the segment was created.
	began time.Time
	// size is the size of the file, in bytes.
	size int64
	// aead encrypts copies. It is nil if no copies may be added to the segment, because an earlier process created it
	// or because its last entry may be incomplete.
	aead cipher.AEAD
}

const (
	extension    = ".args"
	keyExtension = ".key"
	// parts determines when a new segment is begun. A segment receives copies only for 1/parts of the maximum age, and
	// only until its size reaches 1/parts of a person's share.
	parts = 24
)

var errClosed = errors.New("arguments: the store is closed")

// Open opens a store and removes expired segments. The caller must hold a lock on the segments' directory.
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
	entries, err := os.ReadDir(cfg.Dir) // sorted by name, and therefore by time
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

// Put stores a copy of a call's arguments. The caller passes the id of the decision on the call, and the identity of
// the person on whose behalf the call is made. If the copy cannot be stored, Put returns an error that wraps
// [ErrNotStored].
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

// activeOf returns the segment to which a person's copies are currently added. If there is none, it creates a segment.
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
	if s.expire == nil { // otherwise the timer is already set for an older segment
		s.scheduleExpiry()
	}
	return one, nil
}

// Get returns the arguments in a copy that was stored for the decision with the given id.
func (s *Store) Get(id string, c Copy) ([]byte, error) {
	name, offset, err := parsePlace(c.Place)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock() // so that the segment is not removed while it is read
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

// Usage describes how much space the copies in a store use, and how old they are.
type Usage struct {
	// Bytes is the total size of the copies, and Max is the highest allowed size, both in bytes.
	Bytes, Max int64
	// Oldest is the time when the oldest segment was created. All copies from before that time were removed. Oldest is
	// zero if there are no copies.
	Oldest time.Time
	// Age is how long a copy is stored at most.
	Age time.Duration
	// RemovedEarly is the last time when copies were removed because a maximum size was exceeded. It is zero if no
	// copies were removed for that reason.
	RemovedEarly time.Time
}

// Usage returns the current usage of the store.
func (s *Store) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Usage{Bytes: s.size, Max: s.cfg.Bytes, Age: s.cfg.Age, RemovedEarly: s.early}
	if first := s.oldest(); first != nil {
		out.Oldest = first.began
	}
	return out
}

// Fault returns the reason why the most recent copy could not be stored, or nil if it was stored.
func (s *Store) Fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// Close closes the store. It does nothing if the store is nil or already closed.
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

// share returns how many bytes the segments of one person may use.
func (s *Store) share() int64 { return int64(float64(s.cfg.Bytes) * s.cfg.Share) }

// find returns the segment with the given name, or nil if there is none.
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

// add adds a segment, which must be newer than all other segments of the same person.
func (s *Store) add(one *segment) {
	o := s.owners[one.person]
	if o == nil {
		o = new(owner)
		s.owners[one.person] = o
	}
	o.segments = append(o.segments, one)
}

// grow adds the given number of bytes to the recorded sizes of a segment, its owner and the store.
func (s *Store) grow(one *segment, bytes int64) {
	one.size += bytes
	s.size += bytes
	s.owners[one.person].size += bytes
}
