package hostile_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// The mesh accepts JWTs of this issuer for this audience, signed with ES256, which takes longest to verify among the
// algorithms that are accepted by default.
const jwtIssuer, jwtAudience = "https://issuer.example.com", "hostile"

// startIssuer serves the public key of the issuer, and returns its URL. No attacker has the private key.
func startIssuer(t *testing.T) (keySet string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, x and y
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	keys, err := json.Marshal(map[string]any{"keys": []map[string]string{{
		"kty": "EC", "crv": "P-256", "kid": "key", "alg": "ES256", "x": encode(point[1:33]), "y": encode(point[33:]),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys) }))
	t.Cleanup(server.Close)
	return server.URL
}

// forgedJWT returns a JWT in which all is right except the signature. Each is different, so that no result is
// remembered.
func forgedJWT() string {
	encode := func(value any) string {
		raw, _ := json.Marshal(value) // maps of strings and numbers
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	now := time.Now().Unix()
	signature := make([]byte, 64)
	_, _ = crand.Read(signature) // never fails
	return encode(map[string]string{"alg": "ES256", "kid": "key", "typ": "JWT"}) + "." +
		encode(map[string]any{"iss": jwtIssuer, "aud": jwtAudience, "sub": "ana", "iat": now, "exp": now + 600, "jti": uniqueText()}) + "." +
		base64.RawURLEncoding.EncodeToString(signature)
}

// presentForgedJWT reports whether the mesh has answered a request with a forged JWT, and has not accepted it.
func presentForgedJWT(ctx context.Context, m target) bool {
	m.Token = forgedJWT()
	resp := m.post(ctx, "free", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if resp == nil {
		return false
	}
	drain(resp)
	return resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusServiceUnavailable
}
