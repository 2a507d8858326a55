package arguments

import (
	"bufio"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// A person is the beginning of the SHA-256 of a person's identity.
type person [8]byte

func personOf(who string) (p person) {
	sum := sha256.Sum256([]byte(who))
	copy(p[:], sum[:])
	return p
}

// An entry of a segment consists of the number of bytes that follow (4 bytes, big endian), the person, the encrypted
// arguments, and their authentication tag. The id of the decision is authenticated with them.
const (
	lengthBytes = 4
	headBytes   = lengthBytes + len(person{})
	// sealBytes is the number of bytes that the encryption adds: a nonce and a tag.
	sealBytes = 12 + 16
	// maxEntry is the maximum length of an entry. Messages are smaller.
	maxEntry = 64 << 20
	keyBytes = 32
)

func entrySize(arguments []byte) int64 { return int64(headBytes + sealBytes + len(arguments)) }

// A writer appends entries to a segment.
type writer struct {
	file *os.File
	aead cipher.AEAD
}

// newWriter creates the key and the file of a segment.
func newWriter(path, keyPath string) (*writer, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
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
	return &writer{file, aead}, nil
}

// writeKey writes a key so that it survives a loss of power, because the entries are useless without it.
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

// write appends an entry at the end of the segment, which has size bytes, and returns the entry. After an error, the
// writer must be closed.
func (w *writer) write(size int64, owner person, id string, arguments []byte, sync bool) ([]byte, error) {
	entry := make([]byte, headBytes, entrySize(arguments))
	binary.BigEndian.PutUint32(entry, uint32(entrySize(arguments)-lengthBytes))
	copy(entry[lengthBytes:], owner[:])
	entry = w.aead.Seal(entry, nil, arguments, []byte(id)) //nolint:gosec // the AEAD adds a random nonce
	_, err := w.file.Write(entry)
	if err == nil && sync {
		err = w.file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, w.file.Truncate(size))
	}
	return entry, nil
}

func (w *writer) close() error { return w.file.Close() }

// scan returns the size of the complete entries in a segment, for each person and in total. A process that was killed
// may have left an incomplete entry at the end.
func scan(path string) (persons map[person]int64, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close() //nolint:errcheck // only read
	persons = make(map[person]int64)
	for in := bufio.NewReader(file); ; {
		var head [headBytes]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return persons, size, ignoreEnd(err)
		}
		rest := int(binary.BigEndian.Uint32(head[:])) - len(person{})
		if rest < sealBytes || rest > maxEntry {
			return persons, size, nil // damaged: what follows can't be found either
		}
		if _, err := in.Discard(rest); err != nil {
			return persons, size, ignoreEnd(err)
		}
		persons[person(head[lengthBytes:])] += int64(headBytes + rest)
		size += int64(headBytes + rest)
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// parsePlace returns the segment and the offset of a copy.
func parsePlace(place string) (name string, offset int64, err error) {
	name, text, _ := strings.Cut(place, ":")
	offset, err = strconv.ParseInt(text, 10, 64)
	if err != nil || offset < 0 {
		return "", 0, fmt.Errorf("%w: %q is not the position of a copy", ErrDamaged, place)
	}
	return name, offset, nil
}

// readEntry reads the entry at an offset.
func readEntry(path string, offset int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read recorded arguments: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	var head [lengthBytes]byte
	if _, err := file.ReadAt(head[:], offset); err != nil {
		return nil, damagedAtEnd(err)
	}
	rest := int(binary.BigEndian.Uint32(head[:]))
	if rest < len(person{})+sealBytes || rest > maxEntry {
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

// openEntry decrypts an entry.
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
	out, err := aead.Open(nil, nil, entry[headBytes:], []byte(id))
	if err != nil {
		return nil, fmt.Errorf("%w: they can't be decrypted", ErrDamaged)
	}
	return out, nil
}
