package edge_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// provider is an OpenID provider. It serves its metadata and its keys, and signs JWTs.
type provider struct {
	*httptest.Server
	t *testing.T

	mu   sync.Mutex
	away bool
	keys map[string]ed25519.PrivateKey
}

func startProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t, keys: make(map[string]ed25519.PrivateKey)}
	p.addKey("first")
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) addKey(id string) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[id] = private
}

func (p *provider) setAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []map[string]string
	for id, private := range p.keys {
		public, _ := private.Public().(ed25519.PublicKey)
		keys = append(keys, map[string]string{"kty": "OKP", "crv": "Ed25519", "kid": id, "x": base64.RawURLEncoding.EncodeToString(public)})
	}
	var page any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		page = map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/keys"}
	case "/keys":
		page = map[string]any{"keys": keys}
	}
	if page == nil || p.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(page)
}

// token returns a JWT that is valid for five minutes. A nil value in changes removes a claim.
func (p *provider) token(key string, changes map[string]any) string {
	p.t.Helper()
	claims := map[string]any{
		"iss": p.URL, "sub": "ana", "aud": "https://mcp.example.com/mcp", "client_id": "assistant", "groups": []string{"developers"},
		"iat": time.Now().Unix(), "exp": time.Now().Add(5 * time.Minute).Unix(),
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	var parts []string
	for _, part := range []any{map[string]string{"alg": "EdDSA", "kid": key, "typ": "at+jwt"}, claims} {
		raw, err := json.Marshal(part)
		if err != nil {
			p.t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(raw))
	}
	text := strings.Join(parts, ".")
	p.mu.Lock()
	defer p.mu.Unlock()
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(p.keys[key], []byte(text)))
}

// startIssuerMesh starts a mesh whose agents are identified by JWTs of a provider. Its policy allows the group
// developers to call the tool safe.
func startIssuerMesh(t *testing.T, p *provider) (mesh *stack.Process, server *rawmcp.Server) {
	t.Helper()
	server = rawmcp.Start(t, rawmcp.Tools)
	return stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  other: {http: {url: %q}}", server.URL, server.URL),
		Policy:  "version: 1\nname: issuers\nserver: \"*\"\ndefault: deny\nrules:\n  - {name: developers, match: {tool: safe, groups: [developers]}, action: allow}\n",
		Tokens: fmt.Sprintf(`  issuers:
    - name: corp
      issuer: %s
      groups: {claim: /groups}
      agent: {claim: /client_id, names: {assistant: claude}}
      owner: subject
`, p.URL),
		Extra: "public_url: https://mcp.example.com\n",
	})), server
}

// operate runs a command as the operator.
func operate(t *testing.T, mesh *stack.Process, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: args, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "SLUICE_TOKEN=" + stack.OperatorToken}})
}

// awaitKeys waits until the mesh has the keys of its issuer.
func awaitKeys(t *testing.T, mesh *stack.Process) {
	t.Helper()
	eventually.Holds(t, "the mesh has the keys", func() bool {
		shown := operate(t, mesh, "identity", "issuers", "-o", "json")
		return shown.Code == 0 && stack.DecodeOutput[[]struct{ Keys int }](t, shown)[0].Keys == 1
	})
}

func TestIssuers_JWTIdentifiesAnAgent(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startIssuerMesh(t, p)
	awaitKeys(t, mesh)
	client := stack.Connect(t, mesh.MCP("raw"), p.token("first", nil))
	if got := client.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	if n := len(server.Calls("safe")); n != 1 {
		t.Errorf("the server has received %d calls, want 1", n)
	}
	shown := operate(t, mesh, "decisions", "tail", "-o", "json")
	for _, want := range []string{`"corp/ana"`, `"claude"`, `"corp"`, `"assistant"`} {
		if !strings.Contains(shown.Stdout, want) {
			t.Errorf("the records do not contain %s: %s", want, shown.Stdout)
		}
	}
	if got := stack.Connect(t, mesh.MCP("raw"), p.token("first", map[string]any{"groups": []string{}})).Call("safe", "{}"); !got.IsError(t) {
		t.Errorf("an agent without the group: %s", got.Body)
	}
	// The client refreshes its token during a session.
	if got := client.WithToken(p.token("first", map[string]any{"jti": "second"})).Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
		t.Errorf("after a refresh: %d %s", got.Status, got.Body)
	}
}

// No refused JWT reaches a server, and each refusal names the metadata of the resource (RFC 9728, section 5.1).
func TestIssuers_RefusedJWTsReachNoServer(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startIssuerMesh(t, p)
	awaitKeys(t, mesh)
	server.DropRequests()
	stranger := startProvider(t)
	const resource = "https://mcp.example.com/mcp"
	for name, test := range map[string]struct{ url, token, reason string }{
		"no token":          {mesh.MCP("raw"), "", ""},
		"another issuer":    {mesh.MCP("raw"), stranger.token("first", nil), "issuer"},
		"a foreign key":     {mesh.MCP("raw"), stranger.token("first", map[string]any{"iss": p.URL}), "signature"},
		"another audience":  {mesh.MCP("raw"), p.token("first", map[string]any{"aud": "https://other.example.com"}), "aud"},
		"another server":    {mesh.MCP("other"), p.token("first", map[string]any{"aud": resource + "/raw"}), "does not give access to this URL"},
		"all servers":       {mesh.AllServers(), p.token("first", map[string]any{"aud": resource + "/raw"}), "does not give access to this URL"},
		"expired":           {mesh.MCP("raw"), p.token("first", map[string]any{"iat": time.Now().Add(-time.Hour).Unix(), "exp": time.Now().Add(-time.Minute).Unix()}), "expired"},
		"an unknown client": {mesh.MCP("raw"), p.token("first", map[string]any{"client_id": "stranger"}), "/client_id"},
		"bound to a key":    {mesh.MCP("raw"), p.token("first", map[string]any{"cnf": map[string]string{"jkt": "x"}}), "cnf"},
		"delegated":         {mesh.MCP("raw"), p.token("first", map[string]any{"act": map[string]string{"sub": "bot"}}), "act"},
	} {
		got := stack.NewClient(t, test.url, test.token).Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`)
		challenge := got.Header.Get("WWW-Authenticate")
		if got.Status != http.StatusUnauthorized || !strings.Contains(challenge, test.reason) || strings.Contains(challenge, "invalid_token") != (test.token != "") {
			t.Errorf("%s: %d %s %s", name, got.Status, challenge, got.Body)
		}
		metadata := strings.Replace(test.url, mesh.URL, "https://mcp.example.com/.well-known/oauth-protected-resource", 1)
		if !strings.Contains(challenge, `resource_metadata="`+metadata+`"`) {
			t.Errorf("%s: the challenge %s does not name %s", name, challenge, metadata)
		}
	}
	if n := len(server.Requests()); n != 0 {
		t.Errorf("the server has received %d requests", n)
	}
	one := stack.Connect(t, mesh.MCP("raw"), p.token("first", map[string]any{"aud": resource + "/raw"}))
	if got := one.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
		t.Errorf("a token for this server: %d %s", got.Status, got.Body)
	}
}

func TestIssuers_MetadataOfTheResource(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, _ := startIssuerMesh(t, p)
	for path, resource := range map[string]string{"/mcp": "https://mcp.example.com/mcp", "/mcp/raw": "https://mcp.example.com/mcp/raw", "/mcp/absent": "https://mcp.example.com/mcp/absent"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, mesh.URL+"/.well-known/oauth-protected-resource"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "mcp.example.com" // a proxy passes the public host on
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q],"bearer_methods_supported":["header"]}`, resource, p.URL)
		if resp.StatusCode != http.StatusOK || string(raw) != want || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, raw, want)
		}
	}
}

// The provider begins to use a new key. The first call with this key succeeds.
func TestIssuers_NewKeyIsFetchedWhenItIsUsed(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, _ := startIssuerMesh(t, p)
	awaitKeys(t, mesh)
	p.addKey("second")
	if got := stack.Connect(t, mesh.MCP("raw"), p.token("second", nil)).Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// The provider replaces its key while clients call. Each client changes to the new key at another time. No call fails:
// the first calls with the new key wait until the mesh has fetched it.
func TestIssuers_NoCallFailsWhileTheKeyIsReplaced(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startIssuerMesh(t, p)
	awaitKeys(t, mesh)
	const clients, calls = 10, 60
	p.addKey("second")
	var group sync.WaitGroup
	for n := range clients {
		group.Go(func() {
			client := stack.NewClient(t, mesh.MCP("raw"), p.token("first", map[string]any{"jti": n}))
			if err := client.Open(); err != nil {
				t.Errorf("client %d: %v", n, err)
				return
			}
			for call := range calls {
				if call == n {
					client = client.WithToken(p.token("second", map[string]any{"jti": n}))
				}
				if got := client.Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
					t.Errorf("client %d, call %d: %d %s", n, call, got.Status, got.Body)
				}
			}
		})
	}
	group.Wait()
	if n := len(server.Calls("safe")); n != clients*calls {
		t.Errorf("the server has received %d calls, want %d", n, clients*calls)
	}
}

// The provider is unavailable when the mesh starts. The client is asked to repeat its request, and `identity issuers`
// says why. When the provider is available, its JWTs are accepted.
func TestIssuers_ProviderStartsAfterTheMesh(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	p.setAway(true)
	mesh, _ := startIssuerMesh(t, p)
	client := stack.NewClient(t, mesh.MCP("raw"), p.token("first", nil))
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if got := client.Post(ping); got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" || !strings.Contains(string(got.Body), "keys") {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	eventually.Holds(t, "the problem is shown", func() bool { return strings.Contains(operate(t, mesh, "identity", "issuers").Stdout, "503") })
	p.setAway(false)
	eventually.Holds(t, "a session opens", func() bool { return client.Open() == nil })
}

func TestIdentityExplain_ShowsEachStep(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, _ := startIssuerMesh(t, p)
	awaitKeys(t, mesh)
	ran := operate(t, mesh, "identity", "explain", p.token("first", nil))
	for _, want := range []string{"corp/ana", "developers", "claude", "all servers", "signature"} {
		if ran.Code != 0 || !strings.Contains(ran.Stdout, want) {
			t.Errorf("exit code %d, without %q:\n%s%s", ran.Code, want, ran.Stdout, ran.Stderr)
		}
	}
	ran = operate(t, mesh, "identity", "explain", p.token("first", map[string]any{"aud": "x"}))
	if ran.Code != 1 || !strings.Contains(ran.Stdout, "refused") {
		t.Errorf("another audience: exit code %d:\n%s%s", ran.Code, ran.Stdout, ran.Stderr)
	}
}
