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

// keys are the journal's own keys. Their folder is separate from the journal's: with a copy of the journal alone,
// heads can't be sealed and guesses of arguments can't be tested.
type keys struct {
	hmac []byte
	seal ed25519.PrivateKey
	// sealed reports whether the sealing key existed before, and therefore a head as well.
	sealed bool
}

// loadKeys reads the keys, or creates them. A key that an earlier version stored in the journal's folder is moved.
func loadKeys(cfg *Config) (keys, error) {
	if err := os.MkdirAll(cfg.Keys, 0o700); err != nil {
		return keys{}, fmt.Errorf("make folder of keys: %w", err)
	}
	if err := os.Chmod(cfg.Keys, 0o700); err != nil { //nolint:gosec // a folder needs the x bit
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

// adopt moves a key from the place where an earlier version stored it. If another key is already in the new place, it
// returns an error.
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

// loadKey reads a key or creates it, and reports whether it was created.
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
		return nil, false, fmt.Errorf("%s is not a key of %d bytes in hex: restore it, or remove it to get a new one", path, keySize)
	}
	return key, false, nil
}

// replaceFile writes a file that only its owner can read and renames it to path, so that a crash leaves the old or
// the new file; if durable is set, a loss of power does too.
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

// hasher makes keyed digests. It may be used concurrently.
type hasher struct{ pool sync.Pool }

type state struct {
	mac  hash.Hash
	sum  [sha256.Size]byte
	text [2 * sha256.Size]byte
}

func newHasher(key []byte) *hasher {
	return &hasher{pool: sync.Pool{New: func() any { return &state{mac: hmac.New(sha256.New, key)} }}}
}

// HMAC returns the HMAC-SHA256 of b under the journal's own key, in hex. Equal arguments have equal digests; without
// the key, arguments can neither be read nor guessed from them. The key is in the file `hmac.key` of the folder of
// keys; if that file is missing, a new key is made, and earlier digests are no longer comparable.
func (j *Journal) HMAC(b []byte) string {
	s := j.hasher.pool.Get().(*state)
	defer j.hasher.pool.Put(s)
	s.mac.Reset()
	s.mac.Write(b)
	hex.Encode(s.text[:], s.mac.Sum(s.sum[:0]))
	return string(s.text[:])
}
