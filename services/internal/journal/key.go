package journal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	keyName = "hmac.key"
	keySize = 32
)

// hasher makes keyed digests.
type hasher struct{ pool sync.Pool }

// state is what one digest needs; it is reused.
type state struct {
	mac  hash.Hash
	sum  [sha256.Size]byte
	text [2 * sha256.Size]byte
}

func newHasher(key []byte) *hasher {
	return &hasher{pool: sync.Pool{New: func() any { return &state{mac: hmac.New(sha256.New, key)} }}}
}

// HMAC returns the HMAC-SHA256 of b under the journal's own key, in hex. Equal
// arguments show as equal; who lacks the key can't tell which they were, nor guess
// them. The key stands in the folder's file `hmac.key`; without that file a new one
// is made, and digests from before it compare no more.
func (j *Journal) HMAC(b []byte) string {
	s := j.hasher.pool.Get().(*state)
	defer j.hasher.pool.Put(s)
	s.mac.Reset()
	s.mac.Write(b)
	hex.Encode(s.text[:], s.mac.Sum(s.sum[:0]))
	return string(s.text[:])
}

// loadKey reads the folder's key, or makes it.
func loadKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, keyName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(dir, path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("protect key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keySize {
		return nil, fmt.Errorf("%s is no key of %d bytes in hex: restore it, or remove it to get a new one", path, keySize)
	}
	return key, nil
}

// makeKey writes a new key beside its place and moves it there, so that a crash
// leaves no half key.
func makeKey(dir, path string) ([]byte, error) {
	key := make([]byte, keySize)
	rand.Read(key)                             // never fails: crypto/rand ends the program instead
	f, err := os.CreateTemp(dir, keyName+".*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	_, err = f.WriteString(hex.EncodeToString(key) + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make key: %w", err), removeIfThere(f.Name()))
	}
	return key, nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
