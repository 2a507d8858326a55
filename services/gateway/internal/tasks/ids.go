package tasks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"slices"

	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

// IDs translates the ids of servers' tasks. A client must not learn the server's own id of a task, because a caller
// with that id could use the task of another caller. A client therefore receives an encrypted id that is valid only for
// the owner of the task. A task always has the same encrypted id (MCP Tasks extension, Security Considerations). IDs is
// safe for concurrent use.
type IDs struct {
	secret []byte
	aead   cipher.AEAD
}

// NewIDs returns an [IDs] that uses the given secret, which may have any length. Values with the same secret produce
// the same encrypted ids.
func NewIDs(secret []byte) (*IDs, error) {
	key := sha256.Sum256(append([]byte("ids of tasks: "), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &IDs{secret: slices.Clone(secret), aead: aead}, err
}

// ForClient returns the encrypted id of a server's task for the task's owner. The nonce for the encryption is derived
// from the owner and the server's own id, so that the encrypted id never changes.
func (i *IDs) ForClient(owner []byte, id string) string {
	mac := hmac.New(sha256.New, i.secret)
	mac.Write(visibility.AppendPart(owner, id))
	nonce := mac.Sum(nil)[:i.aead.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(i.aead.Seal(nonce, nonce, []byte(id), owner))
}

// ForServer returns the server's own id for an encrypted id. It returns false if the encrypted id was not created for
// this owner.
func (i *IDs) ForServer(owner []byte, id string) (string, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if size := i.aead.NonceSize(); err == nil && len(raw) > size {
		own, err := i.aead.Open(nil, raw[:size], raw[size:], owner)
		return string(own), err == nil
	}
	return "", false
}
