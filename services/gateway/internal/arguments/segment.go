package arguments

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"
)

// A person is the first bytes of the SHA-256 of a person's identity.
type person [8]byte

func personOf(who string) (p person) {
	sum := sha256.Sum256([]byte(who))
	copy(p[:], sum[:])
	return p
}

// timeFormat is the format of the creation time in a segment's name.
const timeFormat = "20060102T150405.000000000"

func nameOf(began time.Time, of person) string {
	return began.UTC().Format(timeFormat) + "-" + hex.EncodeToString(of[:])
}

// parseName returns the segment with this name, but without its size. It returns false if the name is not the name of a
// segment.
func parseName(name string) (*segment, bool) {
	at, of, _ := strings.Cut(name, "-")
	began, err := time.Parse(timeFormat, at)
	if err != nil {
		return nil, false
	}
	raw, err := hex.DecodeString(of)
	if err != nil || len(raw) != len(person{}) {
		return nil, false
	}
	return &segment{name: name, began: began, person: person(raw)}, true
}

// An entry of a segment begins with the length of its remaining bytes (4 bytes, big endian). A nonce, the encrypted
// arguments and their authentication tag follow. The tag also authenticates the id of the decision on the call.
const (
	lengthBytes = 4
	// sealBytes is how many bytes the encryption adds, which are the nonce and the tag.
	sealBytes = 12 + 16
	// maxEntry limits the length of an entry, in bytes. No message is longer.
	maxEntry = 64 << 20
	keyBytes = 32
)

// create creates the key and the file of a segment, and returns the cipher that encrypts the segment's entries.
func create(path, keyPath string) (cipher.AEAD, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // crypto/rand.Read never fails
	aead, err := newAEAD(key)
	if err != nil {
		return nil, err
	}
	if err := writeKey(keyPath, key); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Join(err, os.Remove(keyPath))
	}
	return aead, file.Close()
}

// writeKey writes a segment's key and waits until it is on the storage device, because the entries of a segment without
// its key are useless.
func writeKey(path string, key []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(key)
	return errors.Join(err, file.Sync(), file.Close())
}

func newAEAD(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// appendEntry encrypts a call's arguments, appends the entry to the file of a segment, and returns the entry. After an
// error, the caller must append nothing more to the segment, because its last entry may be incomplete.
func appendEntry(path string, to *segment, id string, arguments []byte, sync bool) ([]byte, error) {
	size := lengthBytes + sealBytes + len(arguments)
	entry := make([]byte, lengthBytes, size)
	binary.BigEndian.PutUint32(entry, uint32(size-lengthBytes))
	entry = to.aead.Seal(entry, nil, arguments, []byte(id)) //nolint:gosec // the AEAD adds a random nonce
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = file.Write(entry); err == nil && sync {
		err = file.Sync()
	}
	return entry, errors.Join(err, file.Close())
}

// parsePlace splits the position of a copy into the name of the segment and the offset in the segment.
func parsePlace(place string) (name string, offset int64, err error) {
	name, text, _ := strings.Cut(place, ":")
	offset, err = strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return "", 0, fmt.Errorf("%w: %q is not the position of a copy", ErrDamaged, place)
	}
	return name, offset, nil
}

// readEntry reads the entry at an offset of a segment's file.
func readEntry(path string, offset int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read recorded arguments: %w", err)
	}
	defer file.Close() //nolint:errcheck // the file was only read
	var head [lengthBytes]byte
	if _, err := file.ReadAt(head[:], offset); err != nil {
		return nil, damagedAtEnd(err)
	}
	rest := int(binary.BigEndian.Uint32(head[:]))
	if rest < sealBytes || rest > maxEntry {
		return nil, fmt.Errorf("%w: there is no copy at the position in the journal", ErrDamaged)
	}
	entry := make([]byte, lengthBytes+rest)
	if _, err := file.ReadAt(entry, offset); err != nil {
		return nil, damagedAtEnd(err)
	}
	return entry, nil
}

func damagedAtEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: the segment is shorter than the journal says", ErrDamaged)
	}
	return fmt.Errorf("read recorded arguments: %w", err)
}

// openEntry decrypts an entry and returns the arguments.
func openEntry(keyPath, id string, entry []byte) ([]byte, error) {
	key, err := os.ReadFile(keyPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the key of their segment is missing", ErrDamaged)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of recorded arguments: %w", err)
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, fmt.Errorf("%w: the key of their segment is invalid", ErrDamaged)
	}
	out, err := aead.Open(nil, nil, entry[lengthBytes:], []byte(id))
	if err != nil {
		return nil, fmt.Errorf("%w: they can't be decrypted", ErrDamaged)
	}
	return out, nil
}
