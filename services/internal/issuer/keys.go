package issuer

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

const (
	// MaxKeySet is the maximum size of a JWK Set, in bytes.
	MaxKeySet = 256 << 10
	// maxKeys is the maximum number of keys of an issuer.
	maxKeys = 64
	// maxKeyID is the maximum length of `kid`, in bytes.
	maxKeyID = 256
	// minRSA and maxRSA limit the size of an RSA key, in bits. Larger keys would make verification expensive.
	minRSA = 2048
	maxRSA = 4096
)

// key is a public key of an issuer.
type key struct {
	id     string
	public crypto.PublicKey
	// algorithm is the only algorithm with which the key may be used. If it is empty, every algorithm for the type of the
	// key may be used.
	algorithm string
}

// ParseKeySet returns the keys of a JWK Set (RFC 7517, section 5) that can verify signatures. It omits keys for other
// uses, keys of other types, keys with private or symmetric parts, and RSA keys with fewer than 2,048 or more than
// 4,096 bits. It returns an error if the set is not valid JSON, exceeds a limit, or contains no key that can be used.
func ParseKeySet(raw []byte) ([]*identityv1.IssuerKey, error) {
	if len(raw) > MaxKeySet {
		return nil, fmt.Errorf("the key set has more than %d bytes", MaxKeySet)
	}
	var set struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := json.Unmarshal(raw, &set); err != nil {
		return nil, fmt.Errorf("the key set is not valid JSON: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	var out []*identityv1.IssuerKey
	for _, one := range set.Keys {
		var jwk jose.JSONWebKey
		if jwk.UnmarshalJSON(one) != nil || !jwk.IsPublic() || jwk.Use != "" && jwk.Use != "sig" || len(jwk.KeyID) > maxKeyID || checkKey(jwk.Key) != nil {
			continue
		}
		der, err := x509.MarshalPKIXPublicKey(jwk.Key)
		if err != nil {
			continue
		}
		out = append(out, &identityv1.IssuerKey{Id: jwk.KeyID, Algorithm: jwk.Algorithm, PublicKey: der})
	}
	if len(out) == 0 {
		return nil, errors.New("the key set contains no key that can verify a signature")
	}
	slices.SortFunc(out, compareKeys) // an issuer may list its keys in a different order each time
	return out, nil
}

func compareKeys(a, b *identityv1.IssuerKey) int {
	return cmp.Or(
		strings.Compare(a.GetId(), b.GetId()), strings.Compare(a.GetAlgorithm(), b.GetAlgorithm()),
		bytes.Compare(a.GetPublicKey(), b.GetPublicKey()),
	)
}

// KeysDigest returns the SHA-256 digest of keys in the order of [ParseKeySet].
func KeysDigest(keys []*identityv1.IssuerKey) []byte {
	h := sha256.New()
	for _, k := range keys {
		fmt.Fprintf(h, "%q %q %x\n", k.GetId(), k.GetAlgorithm(), k.GetPublicKey())
	}
	return h.Sum(nil)
}

func parseKey(from *identityv1.IssuerKey) (key, error) {
	public, err := x509.ParsePKIXPublicKey(from.GetPublicKey())
	if err == nil {
		err = checkKey(public)
	}
	if err != nil {
		return key{}, fmt.Errorf("its key %q can't be used: %w", from.GetId(), err)
	}
	return key{id: from.GetId(), algorithm: from.GetAlgorithm(), public: public}, nil
}

// checkKey returns an error unless the type and the size of a public key are accepted.
func checkKey(public crypto.PublicKey) error {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Errorf("it has %d bits, not between %d and %d", bits, minRSA, maxRSA)
		}
	case *ecdsa.PublicKey:
		if curveAlgorithm(k.Curve) == "" {
			return errors.New("its curve is not P-256, P-384 or P-521")
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("its type %T is not supported", public)
	}
	return nil
}

func curveAlgorithm(curve elliptic.Curve) string {
	switch curve {
	case elliptic.P256():
		return "ES256"
	case elliptic.P384():
		return "ES384"
	case elliptic.P521():
		return "ES512"
	default:
		return ""
	}
}

// fits reports whether the key can verify signatures of an algorithm. For example, an RSA key never verifies an HMAC.
func (k key) fits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm {
		return false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		return curveAlgorithm(public.Curve) == algorithm
	default:
		return algorithm == "EdDSA"
	}
}

// keyFor returns the key that verifies a token with the given `kid` and `alg`. A token without `kid` is accepted only
// if exactly one key fits. At most one key is tried, so a token never costs more than one verification.
func (i *issuer) keyFor(id, algorithm string) (crypto.PublicKey, *Refusal) {
	var found []key
	known := false
	for _, k := range i.keys {
		if id != "" && k.id != id {
			continue
		}
		if known = true; k.fits(algorithm) {
			found = append(found, k)
		}
	}
	switch {
	case len(i.keys) == 0:
		return nil, &Refusal{Reason: NoKeys, KeyID: id, text: "the keys of the token's issuer have not been fetched yet"}
	case len(found) == 1:
		return found[0].public, nil
	case len(found) > 1:
		return nil, &Refusal{Reason: UnknownKey, KeyID: id, text: "more than one key of the issuer fits the token's kid and alg"}
	case known:
		return nil, refuse(WrongAlgorithm, "the token's alg does not fit the issuer's key")
	default:
		return nil, &Refusal{Reason: UnknownKey, KeyID: id, text: "the issuer's keys contain no key with the token's kid"}
	}
}
