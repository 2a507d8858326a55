package secretstore

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// sealedVersion is the first byte of a sealed value. It selects AES-256-GCM with a random nonce.
const sealedVersion = 1

// Seal encrypts a value with a key from a [Store]. The purpose, such as the path of a file, is neither secret nor part
// of the result. [OpenSealed] succeeds only with the same purpose.
func Seal(key, value []byte, purpose string) ([]byte, error) {
	sealer, err := newSealer(key)
	if err != nil {
		return nil, err
	}
	return sealer.Seal([]byte{sealedVersion}, nil, value, []byte(purpose)), nil //nolint:gosec // the first argument is a prefix; the sealer adds the nonce
}

// OpenSealed decrypts a value. It returns an error if the value was changed, or if it was sealed with another key or
// for another purpose.
func OpenSealed(key, sealed []byte, purpose string) ([]byte, error) {
	sealer, err := newSealer(key)
	if err != nil {
		return nil, err
	}
	if len(sealed) == 0 || sealed[0] != sealedVersion {
		return nil, errors.New("the value was not sealed by this version of the program")
	}
	value, err := sealer.Open(nil, nil, sealed[1:], []byte(purpose))
	if err != nil {
		return nil, errors.New("the sealed value was changed, or its key is a different one")
	}
	return value, nil
}

func newSealer(key []byte) (cipher.AEAD, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("the key has %d bytes, not %d", len(key), keyBytes)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
