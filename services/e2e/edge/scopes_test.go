package edge_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const scopesPolicy = `version: 1
name: scopes
default: deny
tools:
  safe: {action: allow}
  note: {action: allow, needs_scope: [notes.write, notes.read], reason: notes are shared}
  pay: {action: require_approval, needs_scope: [pay]}
rules:
  - name: posts
    match: {server: raw, tool: post}
    when: 'caller.issuer == ""'
    action: allow
    otherwise: {action: allow, needs_scope: [posts]}
tests:
  - {call: {server: raw, tool: note}, caller: {issuer: corp, scopes: [notes.read, notes.write]}, want: {action: allow}}
  - {call: {server: raw, tool: note}, caller: {issuer: corp, scopes: [notes.read]}, want: {action: deny, code: scope_missing, rule: tools.note}}
  - {call: {server: raw, tool: post}, want: {action: allow, rule: posts}}
`

// startScopeMesh starts a mesh whose policy needs scopes. The client "assistant" handles the status 403.
func startScopeMesh(t *testing.T, p *provider) (mesh *stack.Process, server *rawmcp.Server) {
	t.Helper()
	server = rawmcp.Start(t, rawmcp.Tools)
	mesh = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  other: {http: {url: %q}}", server.URL, server.URL),
		Policy:  scopesPolicy,
		Tokens: fmt.Sprintf(`  issuers:
    - {name: corp, issuer: %s, agent: {claim: /client_id, unknown: claim}, owner: subject}
  scope_step_up: [assistant]
`, p.URL),
		Extra: "public_url: https://mcp.example.com\napprovals: {hold: 0s}\n",
	}))
	awaitKeys(t, mesh)
	return mesh, server
}

// tokenOf returns a JWT of a client with these scopes.
func (p *provider) tokenOf(client, scopes string) string {
	return p.token("first", map[string]any{"client_id": client, "scope": scopes})
}

// scopeDecision contains the members of a refusal because of a missing scope.
type scopeDecision struct {
	Code          string   `json:"code"`
	Rule          string   `json:"rule"`
	Retryable     bool     `json:"retryable"`
	NeededScopes  []string `json:"neededScopes"`
	MissingScopes []string `json:"missingScopes"`
}

// A client that is not listed gets a result that names the scopes. The call does not reach the server. The tool stays
// in the client's list, and the call runs in the same session with another token.
func TestScope_MissingScopeIsRefused(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startScopeMesh(t, p)
	client := stack.Connect(t, mesh.MCP("raw"), p.tokenOf("editor", "notes.read openid"))
	got := client.Call("note", "{}")
	const text = "Denied by policy: the call needs the OAuth scopes notes.read and notes.write, and the token does not have the scope notes.write: " +
		"sign in again with all scopes that the call needs; notes are shared"
	if got.Status != http.StatusOK || !got.IsError(t) || got.Text(t) != text || got.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("%d %q %s", got.Status, got.Header.Get("WWW-Authenticate"), got.Body)
	}
	var answer struct {
		Result struct {
			Meta struct {
				Decision scopeDecision `json:"dev.sluice/decision"`
			} `json:"_meta"`
		} `json:"result"`
	}
	if err := json.Unmarshal(got.Body, &answer); err != nil {
		t.Fatal(err)
	}
	d := answer.Result.Meta.Decision
	if d.Code != "scope_missing" || d.Rule != "scopes/tools.note" || d.Retryable || !slices.Equal(d.NeededScopes, []string{"notes.read", "notes.write"}) || !slices.Equal(d.MissingScopes, []string{"notes.write"}) {
		t.Errorf("%+v", d)
	}
	if listed := client.Post(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); !strings.Contains(string(listed.Body), `"note"`) {
		t.Errorf("the tool is not listed: %s", listed.Body)
	}
	if n := len(server.Calls("note")); n != 0 {
		t.Errorf("the server has received %d calls", n)
	}
	if shown := operate(t, mesh, "decisions", "tail"); !strings.Contains(shown.Stdout, "scope_missing") {
		t.Errorf("the refusal is not on record: %s", shown.Stdout)
	}
	more := client.WithToken(p.tokenOf("editor", "notes.write notes.read"))
	if got := more.Call("note", "{}"); got.Status != http.StatusOK || got.IsError(t) || len(server.Calls("note")) != 1 {
		t.Errorf("with the scopes: %d %s", got.Status, got.Body)
	}
	if got := client.Call("note", "{}"); got.Decision(t).Code != "scope_missing" { // no cached decision of the other token is used
		t.Errorf("without the scopes again: %s", got.Body)
	}
	explained := operate(t, mesh, "policy", "explain", "--server", "raw", "--tool", "note", "--issuer", "corp", "--scopes", "notes.read", "--all")
	if explained.Code != 0 || !strings.Contains(explained.Stdout, "scope_missing") || !strings.Contains(explained.Stdout, "needs_scope") {
		t.Errorf("exit code %d:\n%s%s", explained.Code, explained.Stdout, explained.Stderr)
	}
}

// A caller with a token of the mesh has no scopes. A rule can allow the calls of such callers.
func TestScope_TokenOfTheMeshHasNoScopes(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, _ := startScopeMesh(t, p)
	client := stack.Connect(t, mesh.MCP("raw"), stack.AgentToken)
	if got := client.Call("note", "{}"); got.Status != http.StatusOK || got.Decision(t).Code != "scope_missing" || !strings.Contains(got.Text(t), "without a JWT of an issuer") {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if got := client.Call("post", "{}"); got.IsError(t) {
		t.Errorf("a rule for callers without an issuer: %s", got.Body)
	}
	if got := stack.Connect(t, mesh.MCP("raw"), p.tokenOf("editor", "")).Call("post", "{}"); got.Decision(t).Code != "scope_missing" {
		t.Errorf("a caller with an issuer: %s", got.Body)
	}
}

// A listed client gets the status 403 with a challenge (RFC 6750, section 3.1), and no event stream begins.
func TestScope_ListedClientGetsTheStatus403(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startScopeMesh(t, p)
	for name, test := range map[string]struct{ url, tool, metadata string }{
		"one server":  {mesh.MCP("raw"), "note", "https://mcp.example.com/.well-known/oauth-protected-resource/mcp/raw"},
		"all servers": {mesh.AllServers(), "raw__note", "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"},
	} {
		for _, accept := range []string{"application/json, text/event-stream", "text/event-stream, application/json"} {
			client := stack.Connect(t, test.url, p.tokenOf("assistant", "notes.read posts"))
			client.Header = http.Header{"Accept": {accept}}
			got := client.Post(stack.CallRequest(fmt.Sprintf(`{"name":%q}`, test.tool)))
			want := `Bearer realm="sluice", error="insufficient_scope", scope="notes.read notes.write posts", resource_metadata="` + test.metadata + `"`
			if got.Status != http.StatusForbidden || got.Header.Get("WWW-Authenticate") != want || got.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %d %s %s", name, got.Status, got.Header, got.Body)
			}
			var answer struct {
				ID    json.RawMessage `json:"id"`
				Error struct {
					Code    int           `json:"code"`
					Message string        `json:"message"`
					Data    scopeDecision `json:"data"`
				} `json:"error"`
			}
			if err := json.Unmarshal(got.Body, &answer); err != nil {
				t.Fatal(err)
			}
			if e := answer.Error; string(answer.ID) != "7" || e.Code != -31403 || e.Data.Code != "scope_missing" || !slices.Equal(e.Data.MissingScopes, []string{"notes.write"}) || !strings.Contains(e.Message, "notes.write") {
				t.Errorf("%s: %s", name, got.Body)
			}
			if got := client.Call(strings.Replace(test.tool, "note", "danger", 1), "{}"); got.Status != http.StatusOK || got.Decision(t).Code != "denied_by_default" {
				t.Errorf("%s: another refusal: %d %s", name, got.Status, got.Body)
			}
			more := client.WithToken(p.tokenOf("assistant", "notes.read notes.write"))
			if got := more.Call(test.tool, "{}"); got.Status != http.StatusOK || got.IsError(t) {
				t.Errorf("%s: with the scopes: %d %s", name, got.Status, got.Body)
			}
		}
	}
	if n := len(server.Calls("note")); n != 4 {
		t.Errorf("the server has received %d calls, want 4", n)
	}
	modern := stack.NewClient(t, mesh.MCP("raw"), p.tokenOf("assistant", ""))
	modern.Version = "2026-07-28"
	modern.Header = http.Header{"Mcp-Method": {"tools/call"}, "Mcp-Name": {"note"}}
	got := modern.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"note","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if got.Status != http.StatusForbidden || !strings.Contains(got.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`) || !strings.Contains(string(got.Body), "scope_missing") {
		t.Errorf("revision 2026-07-28: %d %s %s", got.Status, got.Header, got.Body)
	}
}

// A call without the scope is not held for an approver. After an approval, a call with a token that lacks the scope is
// refused, and the approval stays valid for a call with the scope.
func TestScope_IsCheckedBeforeAndAfterTheApproval(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startScopeMesh(t, p)
	approvals := &rawmesh.Mesh{Upstream: server, Stack: mesh.Stack}
	without := stack.Connect(t, mesh.MCP("raw"), p.tokenOf("editor", ""))
	if d := without.Call("pay", `{"sum":1}`).Decision(t); d.Code != "scope_missing" {
		t.Fatalf("without the scope: %+v", d)
	}
	if pending := approvals.ListApprovals(t); len(pending) != 0 {
		t.Fatalf("an approval was requested: %+v", pending)
	}
	with := without.WithToken(p.tokenOf("editor", "pay"))
	if d := with.Call("pay", `{"sum":1}`).Decision(t); d.Code != "approval_pending" {
		t.Fatalf("with the scope: %+v", d)
	}
	id := approvals.AwaitOnePending(t)
	if ran := operate(t, mesh, "approvals", "approve", id, "--yes"); ran.Code != 0 {
		t.Fatal(ran.Stderr)
	}
	if d := without.Call("pay", `{"sum":1}`).Decision(t); d.Code != "scope_missing" || len(server.Calls("pay")) != 0 {
		t.Errorf("approved, without the scope: %+v", d)
	}
	approvals.AwaitState(t, id, "approved")
	if got := with.Call("pay", `{"sum":1}`); got.IsError(t) || len(server.Calls("pay")) != 1 {
		t.Errorf("approved, with the scope: %s", got.Body)
	}
}

// publishedScopes returns the scopes in the metadata of a resource. The metadata must have the form that it has for all
// resources.
func publishedScopes(t *testing.T, mesh *stack.Process, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, mesh.URL+"/.well-known/oauth-protected-resource"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	var metadata struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported"`
		Methods  []string `json:"bearer_methods_supported"`
	}
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(raw, &metadata) != nil || metadata.Resource != "https://mcp.example.com"+path || len(metadata.Servers) != 1 || len(metadata.Methods) != 1 {
		t.Fatalf("%s: %d %s, %v", path, resp.StatusCode, raw, err)
	}
	return strings.Join(metadata.Scopes, " ")
}

// The metadata and the challenge of a 401 response contain the scopes that rules need for the server. They change with
// the policy. A server that does not exist has the scopes of all servers.
func TestScope_ClientsLearnTheNeededScopes(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, _ := startScopeMesh(t, p)
	want := func(scopes map[string]string) {
		t.Helper()
		for path, text := range scopes {
			eventually.Holds(t, path+" has the scopes "+text, func() bool { return publishedScopes(t, mesh, path) == text })
			got := stack.NewClient(t, mesh.URL+path, "").Post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			challenge := `Bearer realm="sluice", resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource` + path + `"`
			if text != "" {
				challenge += `, scope="` + text + `"`
			}
			if got.Status != http.StatusUnauthorized || got.Header.Get("WWW-Authenticate") != challenge {
				t.Errorf("%s: %d %s, want %s", path, got.Status, got.Header.Get("WWW-Authenticate"), challenge)
			}
		}
	}
	const all, other = "notes.read notes.write pay posts", "notes.read notes.write pay"
	want(map[string]string{"/mcp": all, "/mcp/raw": all, "/mcp/other": other, "/mcp/absent": all})
	stack.WriteFile(t, mesh.Policy, "version: 1\nname: scopes\ndefault: deny\nrules: [{name: posts, match: {server: raw, tool: post}, action: allow, needs_scope: posts}]\n")
	want(map[string]string{"/mcp": "posts", "/mcp/raw": "posts", "/mcp/other": "", "/mcp/absent": "posts"})
}
