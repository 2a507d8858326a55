package canonicaljson

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// hashChunk is the number of bytes that are hashed before the goroutine yields to other work.
const hashChunk = 64 << 10

// Sum returns the SHA-256 digest of the fields in an unambiguous encoding. Each field is encoded as its length, in 8
// bytes, big-endian, followed by its bytes. See sluice/approval/v1/binding.proto.
func Sum(fields ...string) [sha256.Size]byte {
	size := 0
	for _, field := range fields {
		size += 8 + len(field)
	}
	all := make([]byte, 0, size)
	for _, field := range fields {
		all = binary.BigEndian.AppendUint64(all, uint64(len(field)))
		all = append(all, field...)
	}
	return Hash(all)
}

// Hash returns the SHA-256 digest of text. The text may be large, because Hash yields to other work between chunks.
func Hash(text []byte) [sha256.Size]byte {
	var work gosched.Work
	hash := sha256.New()
	for part := range slices.Chunk(text, hashChunk) {
		_, _ = hash.Write(part) // never fails
		work.Part()
	}
	return [sha256.Size]byte(hash.Sum(nil))
}
