package identity_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
)

// The OAuth client of the mesh at the provider.
const testClient, testClientSecret = "sluice-cli", "secret-of-the-client"

// provider is an OpenID provider for tests, whose answers a test can change. It is safe for concurrent use.
type provider struct {
	*httptest.Server
	key ed25519.PrivateKey

	mu sync.Mutex
	// metadata and claims replace or add members of the metadata and of the ID tokens. A nil value removes a member.
	metadata, claims map[string]any
	// errorCode is the error of the token endpoint. If it is empty, the token endpoint issues tokens.
	errorCode string
	// requests contains the forms that the token endpoint has received, and devices those of the device endpoint.
	requests, devices []url.Values
	// challenge is the PKCE challenge of the authorization request. If it is empty, no verifier is needed.
	challenge string
	// nonce is the claim `nonce` of the ID tokens. fetches is the number of requests for the metadata.
	nonce   string
	fetches int
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", p.serveMetadata)
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		write(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "EdDSA", Use: "sig"}}})
	})
	mux.HandleFunc("POST /token", p.serveToken)
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm() // an unreadable form is empty
		p.set(func(p *provider) { p.devices = append(p.devices, r.PostForm) })
		write(w, map[string]any{"device_code": "device", "user_code": "ABCD", "verification_uri": p.URL + "/enter", "expires_in": 600, "interval": 1})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

// set changes the provider.
func (p *provider) set(change func(*provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *provider) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetches++
	out := map[string]any{
		"issuer": p.URL, "jwks_uri": p.URL + "/keys", "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
		"device_authorization_endpoint": p.URL + "/device",
	}
	merge(out, p.metadata)
	write(w, out)
}

func (p *provider) serveToken(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = r.ParseForm() // an unreadable form is empty
	p.requests = append(p.requests, r.PostForm)
	name, secret, _ := r.BasicAuth()
	sum := sha256.Sum256([]byte(r.PostForm.Get("code_verifier")))
	isProven := p.challenge == "" || base64.RawURLEncoding.EncodeToString(sum[:]) == p.challenge
	switch {
	case name != testClient || secret != testClientSecret:
		fail(w, "invalid_client")
	case p.errorCode != "":
		fail(w, p.errorCode)
	case r.PostForm.Get("code") != "code" && r.PostForm.Get("device_code") != "device", !isProven:
		fail(w, "invalid_grant")
	default:
		write(w, map[string]any{"access_token": "opaque", "token_type": "Bearer", "id_token": p.idToken("JWT", nil)})
	}
}

// idToken returns an ID token. The type is the header `typ`. more replaces or adds claims.
func (p *provider) idToken(kind string, more map[string]any) string {
	now := time.Now()
	claims := map[string]any{"iss": p.URL, "aud": testClient, "sub": "ana", "groups": []string{"sre"}, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	if p.nonce != "" {
		claims["nonce"] = p.nonce
	}
	merge(claims, p.claims)
	merge(claims, more)
	raw, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, (&jose.SignerOptions{}).WithType(jose.ContentType(kind)))
	if err != nil {
		panic(err)
	}
	signed, err := signer.Sign(raw)
	if err != nil {
		panic(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		panic(err)
	}
	return text
}

func merge(into, from map[string]any) {
	for name, value := range from {
		if into[name] = value; value == nil {
			delete(into, name)
		}
	}
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.MarshalWrite(w, value) // the client notices if the response is not complete
}

func fail(w http.ResponseWriter, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprintf(w, `{"error":%q,"error_description":"said the provider"}`, code)
}
