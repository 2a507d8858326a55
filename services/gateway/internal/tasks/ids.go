package tasks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"slices"

	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
)

// IDs translates the ids of servers' tasks. Knowing the id of a server's task is enough to use it, so a client gets an
// id that is encrypted for its owner: another caller cannot use it, and the client does not learn the server's own
// id. The same task has the same id each time (MCP Tasks extension, Security Considerations). IDs is safe for
// concurrent use.
type IDs struct {
	secret []byte
	aead   cipher.AEAD
}

// NewIDs returns the translation with a secret of any length. The same secret gives the same ids.
func NewIDs(secret []byte) (*IDs, error) {
	key := sha256.Sum256(append([]byte("ids of tasks: "), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	return &IDs{secret: slices.Clone(secret), aead: aead}, err
}

// ForClient returns the id that an owner gets for a server's task. Its nonce is derived from the owner and the id.
func (i *IDs) ForClient(owner []byte, id string) string {
	mac := hmac.New(sha256.New, i.secret)
	mac.Write(reach.AppendPart(owner, id))
	nonce := mac.Sum(nil)[:i.aead.NonceSize()]
	return base64.RawURLEncoding.EncodeToString(i.aead.Seal(nonce, nonce, []byte(id), owner))
}

// ForServer returns the server's own id. It returns false if the id was not made for this owner.
func (i *IDs) ForServer(owner []byte, id string) (string, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(id)
	if size := i.aead.NonceSize(); err == nil && len(raw) > size {
		own, err := i.aead.Open(nil, raw[:size], raw[size:], owner)
		return string(own), err == nil
	}
	return "", false
}
