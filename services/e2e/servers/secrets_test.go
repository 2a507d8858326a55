package servers_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const secretsPolicy = "version: 1\nname: secrets\nserver: \"*\"\ndefault: deny\nrules:\n  - {name: all, match: {tool: safe}, action: allow}\n"

// startVault starts a server with the HTTP API of Vault. It returns its URL, and a function that returns the number of
// requests.
func startVault(t *testing.T) (url string, requests func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		mu.Unlock()
		if r.URL.Path != "/v1/kv/data/team/wiki" || r.Header.Get("X-Vault-Token") != "hvs.test" {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"errors":["permission denied"]}`)
			return
		}
		fmt.Fprint(w, `{"data":{"data":{"token":"from-vault-7d1f"},"metadata":{}}}`)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// An agent's token comes from a command, and a server's header from Vault, whose token comes from another command. The
// server receives the header. No response and no file of the mesh contains a secret.
func TestSecrets_ComeFromCommandsAndVault(t *testing.T) {
	t.Parallel()
	server := rawmcp.Start(t, rawmcp.Tools)
	vault, requests := startVault(t)
	const token = "a-token-from-a-command-1c9e7b3f5a2d4860"
	mesh := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  wiki: {http: {url: %q, headers: {X-Key: \"Key ${vault:kv/team/wiki#token}\", X-Same: \"${vault:kv/team/wiki#token}\"}}}", server.URL),
		Policy:  secretsPolicy,
		Tokens:  "    - {name: ci, token: \"${cmd:ci}\", agent: ci, role: agent}",
		Extra:   fmt.Sprintf("secrets:\n  commands:\n    ci: {command: [echo, %s]}\n    vault: {command: [sh, -c, \"printf hvs.test\"]}\n  vault: {address: %q, token: \"${cmd:vault}\"}\n", token, vault),
	}))
	got := stack.Connect(t, mesh.MCP("wiki"), token).Call("safe", "{}")
	if got.Status != http.StatusOK || got.IsError(t) {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	call := server.Calls("safe")[0]
	if key, same := call.Header.Get("X-Key"), call.Header.Get("X-Same"); key != "Key from-vault-7d1f" || same != "from-vault-7d1f" {
		t.Errorf("the server has received %q and %q", key, same)
	}
	if n := requests(); n != 1 {
		t.Errorf("Vault has received %d requests, want 1", n)
	}
	if text := mesh.Stdout() + mesh.Stderr(); strings.Contains(text, "from-vault") || strings.Contains(text, "hvs.test") {
		t.Errorf("the output contains a secret: %s", text)
	}
	for _, c := range []struct {
		args     []string
		requests int // requests that Vault has received after the command
	}{{[]string{"status"}, 1}, {[]string{"connections"}, 1}, {[]string{"config", "check"}, 2}} {
		ran := stack.Run(t, stack.Command{Args: c.args, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "SLUICE_TOKEN=" + stack.OperatorToken}})
		if ran.Code != 0 || strings.Contains(ran.Stdout+ran.Stderr, "from-vault") {
			t.Errorf("%v: %+v", c.args, ran)
		}
		if n := requests(); n != c.requests {
			t.Errorf("after %v, Vault has received %d requests, want %d", c.args, n, c.requests)
		}
	}
}

// If a secret can't be read, the mesh does not start. The error names the key, the reason and what to do.
func TestSecrets_MeshDoesNotStartWithoutThem(t *testing.T) {
	t.Parallel()
	vault, _ := startVault(t)
	for name, c := range map[string]struct{ secrets, header, want string }{
		"no such command": {"{}", "${cmd:none}", "add it to secrets.commands"},
		"command fails":   {`{commands: {op: {command: [sh, -c, "echo you are not signed in >&2; exit 1"]}}}`, "${cmd:op}", "you are not signed in"},
		"no program":      {`{commands: {op: {command: [sluice-no-such-program]}}}`, "${cmd:op}", "is not in PATH"},
		"no server":       {"{}", "${vault:kv/team/wiki#token}", "set secrets.vault"},
		"no permission":   {fmt.Sprintf("{vault: {address: %q, token: hvs.other}}", vault), "${vault:kv/team/wiki#token}", "permission denied"},
		"no field":        {fmt.Sprintf("{vault: {address: %q, token: hvs.test}}", vault), "${vault:kv/team/wiki#password}", "has no field"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mesh := stack.Launch(t, stack.WriteConfig(t, stack.Options{
				Servers: fmt.Sprintf("  wiki: {http: {url: \"http://127.0.0.1:1/mcp\", headers: {X-Key: %q}}}", c.header),
				Policy:  secretsPolicy, Extra: "secrets: " + c.secrets,
			}))
			if err := mesh.Wait(); err == nil {
				t.Fatal("the mesh has started")
			}
			for _, want := range []string{"servers.wiki", c.want} {
				if !strings.Contains(mesh.Stderr(), want) {
					t.Errorf("%q is missing in the output: %s", want, mesh.Stderr())
				}
			}
		})
	}
}
