package journal

import (
	"crypto/ed25519"
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
	hmacName = "hmac.key"
	sealName = "seal.key"
	keySize  = 32
)

// keys are the journal's own. They stand in a folder of their own: who has the
// journal's, or a copy of it, can't seal heads and can't guess arguments.
type keys struct {
	hmac []byte
	seal ed25519.PrivateKey
	// sealed says that the key that seals was there before, and so a head as well.
	sealed bool
}

// loadKeys reads the keys, or makes them. One that an earlier version kept beside the
// journal moves.
func loadKeys(cfg *Config) (keys, error) {
	if err := os.MkdirAll(cfg.Keys, 0o700); err != nil {
		return keys{}, fmt.Errorf("make folder of keys: %w", err)
	}
	if err := os.Chmod(cfg.Keys, 0o700); err != nil { //nolint:gosec // a folder is entered
		return keys{}, fmt.Errorf("protect folder of keys: %w", err)
	}
	if err := adopt(filepath.Join(cfg.Dir, hmacName), filepath.Join(cfg.Keys, hmacName)); err != nil {
		return keys{}, err
	}
	key, _, err := loadKey(filepath.Join(cfg.Keys, hmacName))
	if err != nil {
		return keys{}, err
	}
	seed, made, err := loadKey(filepath.Join(cfg.Keys, sealName))
	if err != nil {
		return keys{}, err
	}
	return keys{hmac: key, seal: ed25519.NewKeyFromSeed(seed), sealed: !made}, nil
}

// adopt moves a key from where an earlier version kept it. One that is at its new
// place already stays: the other is that of another journal, and is left alone.
func adopt(from, to string) error {
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move key: %w", err)
	}
	switch kept, err := os.ReadFile(to); {
	case errors.Is(err, fs.ErrNotExist):
		if err := replaceFile(to, text, true); err != nil {
			return fmt.Errorf("move key: %w", err)
		}
	case err != nil:
		return fmt.Errorf("move key: %w", err)
	case string(kept) != string(text):
		return fmt.Errorf("%s and %s are two keys: move the one away that is not this journal's", from, to)
	}
	return removeIfThere(from)
}

// loadKey reads a key, or makes it, and tells which.
func loadKey(path string) (key []byte, made bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, keySize)
		rand.Read(key) // never fails: crypto/rand ends the program instead
		if err := replaceFile(path, []byte(hex.EncodeToString(key)+"\n"), true); err != nil {
			return nil, false, fmt.Errorf("make key: %w", err)
		}
		return key, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read key: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, false, fmt.Errorf("protect key: %w", err)
	}
	key, err = hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keySize {
		return nil, false, fmt.Errorf("%s is no key of %d bytes in hex: restore it, or remove it to get a new one", path, keySize)
	}
	return key, false, nil
}

// replaceFile writes a file for its owner alone beside its place and moves it there,
// so that a crash leaves the old or the new one; durable says that a loss of power
// does too.
func replaceFile(path string, text []byte, durable bool) error {
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(dir, name+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if durable {
		err = errors.Join(err, f.Sync())
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil && durable {
		err = syncDir(dir)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(f.Name()))
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

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
// them. The key stands in the file `hmac.key` of the folder of keys; without that file
// a new one is made, and digests from before it compare no more.
func (j *Journal) HMAC(b []byte) string {
	s := j.hasher.pool.Get().(*state)
	defer j.hasher.pool.Put(s)
	s.mac.Reset()
	s.mac.Write(b)
	hex.Encode(s.text[:], s.mac.Sum(s.sum[:0]))
	return string(s.text[:])
}
