package issuer_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

func keySet(t *testing.T, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Providers list keys for encryption and keys of new types next to the keys for signatures.
func TestParseKeySet_OmitsKeysThatVerifyNoSignature(t *testing.T) {
	t.Parallel()
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err == nil {
		t.Logf("P-224 is not tried: go-jose can't write it (%v)", p224.Params().Name)
	}
	raw := keySet(t,
		jose.JSONWebKey{Key: keys().rsa.Public(), KeyID: "rsa", Algorithm: "RS256", Use: "sig"},
		jose.JSONWebKey{Key: keys().ecdsa.Public(), KeyID: "ec"},
		jose.JSONWebKey{Key: keys().ed.Public(), KeyID: "ed"},
		jose.JSONWebKey{Key: keys().rsa.Public(), KeyID: "encryption", Use: "enc"},
		jose.JSONWebKey{Key: keys().rsa, KeyID: "private"},
		jose.JSONWebKey{Key: []byte("a symmetric key"), KeyID: "secret"},
		jose.JSONWebKey{Key: small.Public(), KeyID: "small"},
	)
	raw = []byte(strings.Replace(string(raw), `{"keys":[`, `{"keys":[{"kty":"NEW","kid":"new"},`, 1))
	got, err := issuer.ParseKeySet(raw)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, key := range got {
		ids = append(ids, key.GetId())
	}
	if text := strings.Join(ids, " "); text != "ec ed rsa" {
		t.Errorf("the keys are %q, want ec, ed and rsa", text)
	}
	if _, err := issuer.NewSet([]*identityv1.Issuer{corp(t, func(i *identityv1.Issuer) { i.Keys = got })}); err != nil {
		t.Errorf("the keys can't be used: %v", err)
	}
}

func TestParseKeySet_RefusesSets(t *testing.T) {
	t.Parallel()
	var many []jose.JSONWebKey
	for i := range 65 {
		many = append(many, jose.JSONWebKey{Key: keys().ed.Public(), KeyID: fmt.Sprint(i)})
	}
	for name, raw := range map[string]string{
		"empty":             "",
		"not JSON":          "<html>",
		"no keys":           "{}",
		"no usable key":     `{"keys":[{"kty":"oct","k":"AAAA"}]}`,
		"a member twice":    `{"keys":[],"keys":[]}`,
		"65 keys":           string(keySet(t, many...)),
		"more than 256 KiB": `{"keys":[],"x":"` + strings.Repeat("x", 256<<10) + `"}`,
	} {
		if got, err := issuer.ParseKeySet([]byte(raw)); err == nil {
			t.Errorf("%s: accepted with %d keys", name, len(got))
		}
	}
}
