package authn

import (
	"crypto/rand"
	"errors"
	"hash/crc32"
	"math/big"
	"strings"
)

const (
	// secretPrefix begins the secret of every stored token. The letter after the prefix is `a` for an agent and `s` for a
	// session.
	secretPrefix = "slc1_"
	// agentPrefix begins the secret of an agent's token. sessionPrefix begins the secret of a person's session.
	agentPrefix   = secretPrefix + "a_"
	sessionPrefix = secretPrefix + "s_"
	// digits are the digits of base 62.
	digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	// randomDigits is the number of random digits of a secret. These digits encode 256 bits. checkDigits is the number
	// of digits of the checksum.
	randomDigits = 43
	checkDigits  = 6
)

// NewAgentSecret returns a random secret for an agent's token. The secret consists of `slc1_a_`, 43 random digits of
// base 62, and a checksum. Secret scanners recognize this form.
func NewAgentSecret() string { return newSecret(agentPrefix) }

// NewSessionSecret returns a random secret for a person's session. The secret has the same form as an agent's secret,
// but begins with `slc1_s_`.
func NewSessionSecret() string { return newSecret(sessionPrefix) }

func newSecret(prefix string) string {
	var b strings.Builder
	b.WriteString(prefix)
	for range randomDigits {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(digits))))
		if err != nil {
			panic("authn: the system has no random numbers: " + err.Error()) // crypto/rand never returns an error
		}
		b.WriteByte(digits[n.Int64()])
	}
	return b.String() + checksum(b.String())
}

// checksum returns the CRC-32 (IEEE) of text as 6 digits of base 62.
func checksum(text string) string {
	out := [checkDigits]byte{}
	sum := crc32.ChecksumIEEE([]byte(text))
	for i := range out {
		out[checkDigits-1-i] = digits[sum%62]
		sum /= 62
	}
	return string(out[:])
}

// isMistyped reports whether a secret has the prefix of stored tokens, but has the wrong form or the wrong checksum.
// Such a secret belongs to no token.
func isMistyped(secret string) bool {
	if !strings.HasPrefix(secret, secretPrefix) {
		return false
	}
	const length = len(agentPrefix) + randomDigits + checkDigits
	return len(secret) != length || secret[length-checkDigits:] != checksum(secret[:length-checkDigits])
}

// errMistyped means that a secret in the configuration is not complete.
var errMistyped = errors.New("the token begins with " + secretPrefix + " but is not complete: copy it again")
