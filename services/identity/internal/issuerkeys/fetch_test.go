package issuerkeys_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
)

// keySet returns a JWK Set with one key.
func keySet(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
}

// serve returns a server with TLS that answers each path with a text. {base} in a text stands for the server's URL.
func serve(t *testing.T, pages map[string]string) (server *httptest.Server, ca string) {
	t.Helper()
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		switch to, redirects := strings.CutPrefix(text, "-> "); {
		case !ok:
			http.NotFound(w, r)
		case redirects:
			http.Redirect(w, r, to, http.StatusFound)
		default:
			_, _ = w.Write([]byte(strings.ReplaceAll(text, "{base}", server.URL)))
		}
	}))
	t.Cleanup(server.Close)
	return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func TestFetch_FindsTheKeysInTheMetadata(t *testing.T) {
	t.Parallel()
	for path, metadata := range map[string]string{
		"":       "/.well-known/openid-configuration",
		"/realm": "/realm/.well-known/openid-configuration",
		"/as":    "/.well-known/oauth-authorization-server/as",
	} {
		server, ca := serve(t, map[string]string{metadata: `{"issuer":"{base}` + path + `","jwks_uri":"{base}/keys"}`, "/keys": keySet(t)})
		keys, err := issuerkeys.Fetch(t.Context(), issuerkeys.Source{Issuer: server.URL + path, CA: ca})
		if err != nil || len(keys) != 1 || keys[0].GetId() != "a" {
			t.Errorf("%s: %v, %v", metadata, keys, err)
		}
	}
	server, ca := serve(t, map[string]string{"/keys": keySet(t)})
	if _, err := issuerkeys.Fetch(t.Context(), issuerkeys.Source{Issuer: "https://unreachable.example", KeySet: server.URL + "/keys", CA: ca}); err != nil {
		t.Errorf("key_set: %v", err)
	}
}

func TestFetch_SaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const metadata = "/.well-known/openid-configuration"
	for name, test := range map[string]struct {
		pages map[string]string
		want  string
	}{
		"no metadata":             {nil, "404"},
		"metadata of another":     {map[string]string{metadata: `{"issuer":"https://other.example","jwks_uri":"{base}/keys"}`}, `the metadata is that of the issuer "https://other.example"`},
		"no jwks_uri":             {map[string]string{metadata: `{"issuer":"{base}"}`}, "no jwks_uri"},
		"a member twice":          {map[string]string{metadata: `{"issuer":"{base}","issuer":"{base}","jwks_uri":"{base}/keys"}`}, "not valid JSON"},
		"keys in the clear":       {map[string]string{metadata: `{"issuer":"{base}","jwks_uri":"http://keys.example/"}`}, "is not an https URL"},
		"keys in a file":          {map[string]string{metadata: `{"issuer":"{base}","jwks_uri":"file:///etc/passwd"}`}, "is not a URL with a host"},
		"a redirect":              {map[string]string{metadata: "-> https://evil.example/"}, "302"},
		"the keys are too large":  {map[string]string{metadata: `{"issuer":"{base}","jwks_uri":"{base}/keys"}`, "/keys": strings.Repeat(" ", 256<<10+1)}, "more than 262144 bytes"},
		"the keys are a web page": {map[string]string{metadata: `{"issuer":"{base}","jwks_uri":"{base}/keys"}`, "/keys": "<html>"}, "not valid JSON"},
	} {
		server, ca := serve(t, test.pages)
		_, err := issuerkeys.Fetch(t.Context(), issuerkeys.Source{Issuer: server.URL, CA: ca})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	server, _ := serve(t, nil)
	if _, err := issuerkeys.Fetch(t.Context(), issuerkeys.Source{Issuer: server.URL}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown certificate authority: %v", err)
	}
	if _, err := issuerkeys.Fetch(t.Context(), issuerkeys.Source{Issuer: server.URL, CA: "x"}); err == nil || !strings.Contains(err.Error(), "contains no certificate") {
		t.Errorf("no certificate in ca: %v", err)
	}
}
