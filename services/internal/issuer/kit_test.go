package issuer_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"maps"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

// now is the time at which the tests verify tokens.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// keys returns the keys of the issuer in the tests.
var keys = sync.OnceValue(func() (k struct {
	rsa   *rsa.PrivateKey
	ecdsa *ecdsa.PrivateKey
	ed    ed25519.PrivateKey
}) {
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		panic(err)
	}
	if k.ecdsa, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		panic(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		panic(err)
	}
	return k
})

// object is a JSON object.
type object = map[string]any

// corp returns an issuer with three keys: "rsa", "ec" and "ed".
func corp(t *testing.T, change func(*identityv1.Issuer)) *identityv1.Issuer {
	t.Helper()
	i := &identityv1.Issuer{
		Name: "corp", Issuer: "https://login.example.com", Resource: "https://mcp.example.com/mcp", Audiences: []string{"api://sluice"},
		Tenant: "default", Subject: "corp/{/sub}", Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"},
		Leeway: durationpb.New(30 * time.Second), MaxLife: durationpb.New(2 * time.Hour),
		Keys: []*identityv1.IssuerKey{
			{Id: "rsa", PublicKey: der(t, keys().rsa.Public())},
			{Id: "ec", PublicKey: der(t, keys().ecdsa.Public())},
			{Id: "ed", PublicKey: der(t, keys().ed.Public())},
		},
	}
	if change != nil {
		change(i)
	}
	return i
}

func der(t *testing.T, public crypto.PublicKey) []byte {
	t.Helper()
	raw, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// newSet returns a set with one issuer.
func newSet(t *testing.T, change func(*identityv1.Issuer)) *issuer.Set {
	t.Helper()
	set, err := issuer.NewSet([]*identityv1.Issuer{corp(t, change)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// claims returns valid claims with the given changes. A nil value removes a claim.
func claims(changes object) object {
	out := object{
		"iss": "https://login.example.com", "sub": "ana", "aud": "https://mcp.example.com/mcp",
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(out, changes)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}

// encode returns a value as JSON in base64url.
func encode(t *testing.T, value any) string {
	t.Helper()
	raw, isText := value.(string)
	if !isText {
		marshalled, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		raw = string(marshalled)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(raw))
}

// sign returns a token that is signed with the algorithm in its header. header and claims are objects, or JSON texts.
func sign(t *testing.T, algorithm string, header, claims any) string {
	t.Helper()
	text := encode(t, header) + "." + encode(t, claims)
	sum := sha256.Sum256([]byte(text))
	var signature []byte
	var err error
	switch algorithm {
	case "RS256":
		signature, err = rsa.SignPKCS1v15(rand.Reader, keys().rsa, crypto.SHA256, sum[:])
	case "PS256":
		signature, err = rsa.SignPSS(rand.Reader, keys().rsa, crypto.SHA256, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	case "ES256":
		r, s, problem := ecdsa.Sign(rand.Reader, keys().ecdsa, sum[:])
		if err = problem; err == nil {
			signature = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		}
	case "EdDSA":
		signature = ed25519.Sign(keys().ed, []byte(text))
	case "HS256": // with the RSA key as the secret (RFC 8725, section 2.1)
		mac := hmac.New(sha256.New, der(t, keys().rsa.Public()))
		mac.Write([]byte(text))
		signature = mac.Sum(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// token returns a valid token with the given changes of its claims.
func token(t *testing.T, changes object) string {
	t.Helper()
	return sign(t, "RS256", object{"alg": "RS256", "kid": "rsa", "typ": "at+jwt"}, claims(changes))
}
