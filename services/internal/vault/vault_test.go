package vault_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/vault"
)

// fake is a server with the HTTP API of Vault. It is safe for concurrent use.
type fake struct {
	mu       sync.Mutex
	requests []string
	// failures are sent before other responses.
	failures []failure
	// expired contains tokens that are no longer valid.
	expired []string
}

// failure is a response with an error.
type failure struct {
	status     int
	retryAfter string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r.Method+" "+r.URL.EscapedPath())
	if len(f.failures) > 0 {
		next := f.failures[0]
		f.failures = f.failures[1:]
		w.Header().Set("Retry-After", next.retryAfter)
		w.WriteHeader(next.status)
		fmt.Fprint(w, `{"errors":["Vault is sealed"]}`)
		return
	}
	var body map[string]string
	_ = json.NewDecoder(r.Body).Decode(&body) // requests for secrets have no body
	switch path := r.URL.EscapedPath(); {
	case path == "/v1/auth/approle/login" && body["role_id"] == "role" && body["secret_id"] == "id":
		fmt.Fprintf(w, `{"auth":{"client_token":"hvs.of-approle-%d","lease_duration":3600}}`, len(f.expired))
	case path == "/v1/auth/k8s/login" && body["role"] == "sluice" && body["jwt"] == "pod":
		fmt.Fprint(w, `{"auth":{"client_token":"hvs.of-pod"}}`)
	case strings.HasPrefix(path, "/v1/auth/"):
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"errors":["invalid role or secret ID\u001b[2J"]}`)
	case !strings.HasPrefix(r.Header.Get("X-Vault-Token"), "hvs."), slices.Contains(f.expired, r.Header.Get("X-Vault-Token")), r.Header.Get("X-Vault-Namespace") == "other":
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"errors":["permission denied"]}`)
	default:
		f.secret(w, path)
	}
}

func (*fake) secret(w http.ResponseWriter, path string) {
	switch path {
	case "/v1/kv/data/team/github", "/v1/kv/data/with%20space/%C3%A9%3F":
		fmt.Fprint(w, `{"request_id":"1","data":{"data":{"token":"ghp_x","number":5,"empty":"","nothing":null},"metadata":{"deletion_time":"","destroyed":false,"version":3}}}`)
	case "/v1/kv/data/deleted":
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"data":{"data":null,"metadata":{"deletion_time":"2026-01-01T00:00:00Z","destroyed":false}}}`)
	case "/v1/kv/data/old": // as version 1 of the engine responds
		fmt.Fprint(w, `{"data":{"token":"ghp_x"}}`)
	case "/v1/kv/data/page":
		fmt.Fprint(w, "<html>")
	case "/v1/kv/data/large":
		fmt.Fprint(w, `{"data":{"data":{"token":"`+strings.Repeat("x", 1<<20)+`"}}}`)
	case "/v1/kv/data/moved":
		w.Header().Set("Location", "http://127.0.0.1:1/v1/kv/data/team/github")
		w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"errors":[]}`)
	}
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

func newClient(t *testing.T, f *fake, c vault.Config) *vault.Client {
	t.Helper()
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	c.Address, c.CA = server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	client, err := vault.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func read(t *testing.T, c *vault.Client, text string) (string, error) {
	t.Helper()
	ref, err := vault.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return c.Read(t.Context(), ref)
}

func TestRead_SignsInOnceAndReadsEachSecretOnce(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]vault.Config{
		"token":      {Token: "hvs.x", Namespace: "team"},
		"AppRole":    {Login: vault.Login{Mount: "approle", Body: map[string]string{"role_id": "role", "secret_id": "id"}}},
		"Kubernetes": {Login: vault.Login{Mount: "k8s", Body: map[string]string{"role": "sluice", "jwt": "pod"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := new(fake)
			client, want := newClient(t, server, config), 2
			for range 3 {
				for _, ref := range []string{"kv/team/github#token", "kv/with space/é?#token"} {
					if got, err := read(t, client, ref); err != nil || got != "ghp_x" {
						t.Errorf("%s: %q, %v", ref, got, err)
					}
				}
			}
			if config.Token == "" {
				want++
			}
			if n := server.count(); n != want {
				t.Errorf("there were %d requests instead of %d", n, want)
			}
		})
	}
}

// A token of an earlier login has expired when another secret is read. The client signs in once more.
func TestRead_SignsInAgainAfterTheTokenHasExpired(t *testing.T) {
	t.Parallel()
	server := new(fake)
	client := newClient(t, server, vault.Config{Login: vault.Login{Mount: "approle", Body: map[string]string{"role_id": "role", "secret_id": "id"}}})
	if _, err := read(t, client, "kv/team/github#token"); err != nil {
		t.Fatal(err)
	}
	server.mu.Lock()
	server.expired = append(server.expired, "hvs.of-approle-0")
	server.mu.Unlock()
	if got, err := read(t, client, "kv/with space/é?#token"); err != nil || got != "ghp_x" {
		t.Errorf("%q, %v", got, err)
	}
	if n := server.count(); n != 5 {
		t.Errorf("there were %d requests instead of 5", n)
	}
}

// Requests are repeated if the server is unavailable or limits requests, but not more than twice.
func TestRead_RepeatsRequests(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failures []failure
		requests int
		want     string
	}{
		"limited, then sealed": {[]failure{{status: 429, retryAfter: "1"}, {status: 503}}, 3, ""},
		"always sealed":        {[]failure{{status: 503}, {status: 503}, {status: 503}}, 3, "HTTP 503, Vault is sealed"},
		"refused":              {[]failure{{status: 400}}, 1, "HTTP 400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &fake{failures: c.failures}
			got, err := read(t, newClient(t, server, vault.Config{Token: "hvs.x"}), "kv/team/github#token")
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) || (got == "ghp_x") != (c.want == "") {
				t.Errorf("%q, %v", got, err)
			}
			if n := server.count(); n != c.requests {
				t.Errorf("there were %d requests instead of %d", n, c.requests)
			}
		})
	}
}

// An error says what to do, and contains no token and no secret.
func TestRead_Errors(t *testing.T) {
	t.Parallel()
	login := vault.Config{Login: vault.Login{Mount: "approle", Body: map[string]string{"role_id": "role", "secret_id": "wrong-id"}}}
	token := vault.Config{Token: "hvs.x"}
	for name, c := range map[string]struct {
		config    vault.Config
		ref, want string
	}{
		"no field":           {token, "kv/team/github#password", `has no field "password"`},
		"number":             {token, "kv/team/github#number", "is not a text, or it is empty"},
		"empty field":        {token, "kv/team/github#empty", "is not a text, or it is empty"},
		"null":               {token, "kv/team/github#nothing", "is not a text, or it is empty"},
		"unknown secret":     {token, "kv/none#x", "there is no such secret"},
		"deleted":            {token, "kv/deleted#x", "its newest version is deleted"},
		"version 1":          {token, "kv/old#token", "KV engine of version 2"},
		"a web page":         {token, "kv/page#token", "is not the JSON of Vault"},
		"too large":          {token, "kv/large#token", "more than 1048576 bytes"},
		"redirect":           {token, "kv/moved#token", "is not followed"},
		"no permission":      {vault.Config{Token: "bad-token"}, "kv/team/github#token", "the token may not read kv/data/team/github"},
		"another namespace":  {vault.Config{Token: "hvs.x", Namespace: "other"}, "kv/team/github#token", "permission denied"},
		"wrong credentials":  {login, "kv/team/github#token", `invalid role or secret ID\u001b[2J`},
		"unknown auth mount": {vault.Config{Login: vault.Login{Mount: "none", Body: map[string]string{}}}, "kv/team/github#token", "check the credentials and the mount"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := read(t, newClient(t, new(fake), c.config), c.ref)
			if got != "" || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%q, %v; want %q", got, err, c.want)
			}
			for _, secret := range []string{"ghp_x", "bad-token", "hvs.", "wrong-id", "xxxx"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error contains a secret: %v", err)
				}
			}
		})
	}
}

// A server whose certificate is not trusted receives no token.
func TestRead_UntrustedCertificate(t *testing.T) {
	t.Parallel()
	f := new(fake)
	server := httptest.NewTLSServer(f)
	defer server.Close()
	server.Config.ErrorLog = nil
	client, err := vault.New(vault.Config{Address: server.URL, Token: "hvs.x"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if got, err := read(t, client, "kv/team/github#token"); got != "" || err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%q, %v", got, err)
	}
	if f.count() != 0 {
		t.Error("the server has received a request")
	}
	if _, err := vault.New(vault.Config{CA: []byte("no certificate")}); err == nil {
		t.Error("a CA file without a certificate is accepted")
	}
}

func FuzzParseReference(f *testing.F) {
	for _, text := range []string{"kv/a#b", "kv/a/b#c#d", "kv/../sys/raw#x", "kv//a#b", "kv#b", "kv/a", "/a#b", "kv/a#", "kv/%2e%2e/a#b", "kv/a\x00#b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := vault.ParseReference(text)
		if err != nil {
			return
		}
		if got := ref.Mount + "/" + ref.Path + "#" + ref.Field; got != text {
			t.Errorf("%q becomes %q", text, got)
		}
		for segment := range strings.SplitSeq(ref.Mount+"/"+ref.Path, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Errorf("%q has the segment %q", text, segment)
			}
		}
	})
}
