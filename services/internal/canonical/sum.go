package canonical

import (
	"crypto/sha256"
	"encoding/binary"
)

// Sum hashes fields with SHA-256 so that no two lists of them read the same: each
// is its length, in 8 bytes, the highest first, and then its bytes
// (sluice/approval/v1/binding.proto).
func Sum(fields ...string) [sha256.Size]byte {
	var all []byte
	for _, field := range fields {
		all = binary.BigEndian.AppendUint64(all, uint64(len(field)))
		all = append(all, field...)
	}
	return sha256.Sum256(all)
}
