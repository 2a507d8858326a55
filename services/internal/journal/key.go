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

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

const (
	hmacName = "hmac.key"
	sealName = "seal.key"
	keySize  = 32
)

// keys contains the journal's keys. They are stored outside the journal's directory. Without them, an attacker who has
// a copy of that directory can't sign heads, and can't check guesses of arguments against the recorded digests.
type keys struct {
	hmac []byte
	seal ed25519.PrivateKey
	// hadSealKey is true if the key that signs heads already existed when the journal was opened. In that case a head
	// must exist too.
	hadSealKey bool
}

// loadKeys reads the keys and creates missing keys. If an earlier version stored the key `hmac.key` in the journal's
// directory, loadKeys first moves this key.
func loadKeys(cfg *Config) (keys, error) {
	if err := os.MkdirAll(cfg.Keys, 0o700); err != nil {
		return keys{}, fmt.Errorf("make folder of keys: %w", err)
	}
	if err := os.Chmod(cfg.Keys, 0o700); err != nil { //nolint:gosec // a directory needs the x bit
		return keys{}, fmt.Errorf("protect folder of keys: %w", err)
	}
	if err := moveKey(filepath.Join(cfg.Dir, hmacName), filepath.Join(cfg.Keys, hmacName)); err != nil {
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
	return keys{hmac: key, seal: ed25519.NewKeyFromSeed(seed), hadSealKey: !made}, nil
}

// moveKey moves a key from the directory in which an earlier version stored it. It returns an error if the new
// directory already contains a different key.
func moveKey(from, to string) error {
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move key: %w", err)
	}
	switch existing, err := os.ReadFile(to); {
	case errors.Is(err, fs.ErrNotExist):
		if err := replaceFile(to, text, true); err != nil {
			return fmt.Errorf("move key: %w", err)
		}
	case err != nil:
		return fmt.Errorf("move key: %w", err)
	case string(existing) != string(text):
		return fmt.Errorf("%s and %s are different keys: move the key away that does not belong to this journal", from, to)
	}
	return removeIfThere(from)
}

// loadKey reads a key, or creates it if it is missing. It reports whether it created the key.
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

// replaceFile writes a file that only its owner can read, and renames it to path. If the process crashes, path is
// either the old file or the new file. If durable is true, the same is guaranteed after a power failure.
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
		err = datadir.SyncDir(dir)
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

// hasher computes keyed digests. It is safe for concurrent use.
type hasher struct{ pool sync.Pool }

type state struct {
	mac  hash.Hash
	sum  [sha256.Size]byte
	text [2 * sha256.Size]byte
}

func newHasher(key []byte) *hasher {
	return &hasher{pool: sync.Pool{New: func() any { return &state{mac: hmac.New(sha256.New, key)} }}}
}

// HMAC returns the HMAC-SHA256 of b with the journal's key, in hex. Equal arguments have equal digests. Without the
// key, an attacker can't check guesses of arguments against their digests. The key is in the file `hmac.key` in the
// directory of keys. If that file is missing, the journal creates a new key. Digests with different keys can't be
// compared.
func (j *Journal) HMAC(b []byte) string {
	s := j.hasher.pool.Get().(*state)
	defer j.hasher.pool.Put(s)
	s.mac.Reset()
	s.mac.Write(b)
	hex.Encode(s.text[:], s.mac.Sum(s.sum[:0]))
	return string(s.text[:])
}
