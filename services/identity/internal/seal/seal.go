// Package seal encrypts data with a key that is stored in a file, apart from the data.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

// keySize is in bytes, for AES-256.
const keySize = 32

// ErrOpen means that data can't be decrypted. The data was sealed with another key or for another purpose, or was
// changed afterwards.
var ErrOpen = errors.New("the encrypted data can't be decrypted with the key of this mesh")

// A Key encrypts data. It is safe for concurrent use.
type Key struct{ aead cipher.AEAD }

// NewKey parses a key of 64 hexadecimal digits.
func NewKey(text string) (*Key, error) {
	raw, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil || len(raw) != keySize {
		return nil, errors.New("the key is not 64 hexadecimal digits: create one with `openssl rand -hex 32`")
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Key{aead: aead}, nil
}

// ReadOrCreate returns the key in a file that only the file's owner can read. If the file does not exist, ReadOrCreate
// creates the file with a random key.
func ReadOrCreate(path string) (*Key, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = create(path)
	}
	if err != nil {
		return nil, fmt.Errorf("the key that encrypts access tokens: %w", err)
	}
	key, err := NewKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// create writes a random key to a new file. The file gets its final name only after it is complete. It is synced to
// disk before create returns, because tokens that are encrypted with a lost key can't be decrypted.
func create(path string) ([]byte, error) {
	raw := make([]byte, keySize)
	_, _ = rand.Read(raw) // never fails
	text := []byte(hex.EncodeToString(raw) + "\n")
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, ".key-*") // with mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // fails if the file already has its final name
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return nil, err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return nil, err
	}
	return text, datadir.SyncDir(dir)
}

// makeDir is like [os.MkdirAll], but also syncs each parent directory of a new directory.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if parent := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err = makeDir(parent); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return datadir.SyncDir(filepath.Dir(dir))
}

// Seal encrypts data for a purpose. [Key.Open] can decrypt the data only with the same purpose.
func (k *Key) Seal(data []byte, purpose string) []byte {
	return k.aead.Seal(nil, nil, data, []byte(purpose)) //nolint:gosec // this AEAD adds a random nonce itself
}

// Open decrypts sealed data. If this is not possible, it returns [ErrOpen].
func (k *Key) Open(sealed []byte, purpose string) ([]byte, error) {
	data, err := k.aead.Open(nil, nil, sealed, []byte(purpose))
	if err != nil {
		return nil, ErrOpen
	}
	return data, nil
}
