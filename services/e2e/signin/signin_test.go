package signin_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// startMesh starts a mesh that accepts the access tokens of a provider. Its policy allows the group developers to call
// the tool safe.
func startMesh(t *testing.T, p provider) (mesh *stack.Process, server *rawmcp.Server) {
	t.Helper()
	server = rawmcp.Start(t, rawmcp.Tools)
	listen := stack.FreeAddr(t) // the mesh needs to know its URL before it starts
	audiences := ""
	if p.audience != "" {
		audiences = fmt.Sprintf(", audiences: [%s]", p.audience)
	}
	mesh = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Listen:  listen,
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", server.URL),
		Policy:  "version: 1\nname: signin\nserver: \"*\"\ndefault: deny\nrules:\n  - {name: developers, match: {tool: safe, groups: [developers]}, when: 'caller.issuer == \"idp\"', action: allow}\n",
		Tokens:  fmt.Sprintf("  issuers:\n    - {name: idp, issuer: %q, groups: {claim: /groups}, owner: subject%s,\n       people: {operator: [developers], viewer: [developers]}, sign_in: {client_id: %s, device: true, scopes: [%s]}}\n", p.url, audiences, loginClient, p.loginScope),
		Extra:   "public_url: http://" + listen + "\n",
	}))
	eventually.Holds(t, "the mesh has the keys of the provider", func() bool {
		ran := operate(t, mesh, "identity", "issuers", "-o", "json")
		return ran.Code == 0 && stack.DecodeOutput[[]struct{ Keys int }](t, ran)[0].Keys > 0
	})
	return mesh, server
}

// operate runs a command as the operator.
func operate(t *testing.T, mesh *stack.Process, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{Args: args, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "SLUICE_TOKEN=" + stack.OperatorToken}})
}

// Each client finds the provider by itself: from the response with the status 401, over the metadata of the server
// (RFC 9728), to the metadata of the provider.
func TestSignIn_ClientsCallToolsAfterASignIn(t *testing.T) {
	t.Parallel()
	for name, start := range providers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t)
			mesh, server := startMesh(t, p)
			for client, use := range clients() {
				t.Run(client, func(t *testing.T) {
					before := len(server.Calls("safe"))
					if err := use(t, mesh.MCP("raw"), p); err != nil {
						t.Fatal(err)
					}
					if n := len(server.Calls("safe")) - before; n != 1 {
						t.Errorf("the server has received %d calls, want 1", n)
					}
				})
			}
			records := operate(t, mesh, "decisions", "tail", "-o", "json").Stdout
			for _, want := range []string{`"idp/` + p.subject + `"`, `"idp"`} {
				if !strings.Contains(records, want) {
					t.Errorf("the records do not contain %s: %s", want, records)
				}
			}
		})
	}
}

// A program without a person gets its token with the grant client_credentials (RFC 6749, section 4.4).
func TestSignIn_ProgramUsesClientCredentials(t *testing.T) {
	t.Parallel()
	p := providers()["oidc-provider"](t)
	mesh, _ := startMesh(t, p)
	token := clientCredentials(t, p.url, mesh.MCP("raw"))
	if got := stack.Connect(t, mesh.MCP("raw"), token).Call("safe", "{}"); got.Status != http.StatusOK || got.IsError(t) {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if got := stack.NewClient(t, mesh.AllServers(), token).Post(`{"jsonrpc":"2.0","id":1,"method":"ping"}`); got.Status != http.StatusUnauthorized || !strings.Contains(got.Header.Get("WWW-Authenticate"), "does not give access to this URL") {
		t.Errorf("the token for one server is accepted for all servers: %d %s", got.Status, got.Body)
	}
}
