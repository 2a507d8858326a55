package servers_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/keychain/keychaintest"
)

// teller is a stdio server written in shell. Its only tool returns $TOKEN and the length of $TOKEN.
const teller = `
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  [ -n "$id" ] || continue
  case $line in *'"initialize"'*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"teller","version":"1"}}}'
    continue;;
  *tools/list*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"tell","inputSchema":{"type":"object"}}]}}'
    continue;;
  esac
  echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"length '${#TOKEN}' of '$TOKEN'"}]}}'
done
`

// The configuration refers to the keychain, which is locked when the mesh starts. Servers without a secret in the
// keychain work at once. The other servers work after a person has unlocked the keychain. If a server's secret is
// missing from the keychain, only that server can't be used.
func TestKeychain_ServersGetTheirSecretsOnceItIsUnlocked(t *testing.T) {
	t.Parallel()
	box := keychaintest.Start(t)
	box.Put("far/TOKEN", "canary-of-far")
	box.Put("near/TOKEN", "canary-of-near")
	box.Lock()
	raw := rawmcp.Start(t, rawmcp.Tools)
	script := filepath.Join(t.TempDir(), "teller.sh")
	stack.WriteFile(t, script, teller)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf(`  plain: {http: {url: %[1]q}}
  far: {http: {url: %[1]q, headers: {Authorization: "Bearer ${keychain:far/TOKEN}"}}}
  near: {stdio: {command: [/bin/sh, %[2]q], env: {TOKEN: "${keychain:near/TOKEN}"}, sandbox: {mode: auto}}}
  gone: {http: {url: %[1]q, headers: {Authorization: "${keychain:gone/TOKEN}"}}}
`, raw.URL, script),
		Policy: "version: 1\nname: p\ndefault: allow\nrules:\n  - {name: r, match: {tool: ['*']}, action: allow}\n",
	})
	s.Env = []string{"DBUS_SESSION_BUS_ADDRESS=" + box.Address}
	p := stack.Start(t, s)
	stack.Connect(t, p.MCP("plain"), stack.AgentToken)
	go func() {
		<-box.Prompts // of the first server that needs the keychain
		box.Unlock()
	}()
	stack.Connect(t, p.MCP("far"), stack.AgentToken)
	found := false
	for _, r := range raw.Requests() {
		found = found || r.Header.Get("Authorization") == "Bearer canary-of-far"
	}
	if !found {
		t.Error("the server did not get its header")
	}
	near := stack.Connect(t, p.MCP("near"), stack.AgentToken)
	if got := near.Call("tell", "{}").Text(t); !strings.Contains(got, "length 14 of ") || strings.Contains(got, "canary") {
		t.Errorf("the program has its secret, and the gateway redacts it: %s", got)
	}
	env := []string{"SLUICE_CONFIG=" + s.Config, "SLUICE_TOKEN=" + stack.OperatorToken, "SLUICE_AGENT_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + p.URL, "SLUICE_ADDR=" + p.GRPC}
	code, all := stack.RunDoctor(t, env...)
	gone := all["problem server gone"].Found
	if code != 1 || !strings.Contains(gone, "${keychain:gone/TOKEN}: the keychain has no such entry; store it") {
		t.Errorf("doctor exits with %d: %+v", code, all)
	}
	for _, output := range []string{p.Stderr(), fmt.Sprint(all)} {
		if strings.Contains(output, "canary") {
			t.Errorf("a secret is shown: %s", output)
		}
	}
	// A person stores the missing entry in the keychain. The gateway then gets the secret without a restart.
	box.Put("gone/TOKEN", "found again")
	client := stack.NewClient(t, p.MCP("gone"), stack.AgentToken)
	eventually.Within(t, 3*time.Minute, "the server works", func() bool { return client.Open() == nil })
}

// On a system without a keychain, the mesh serves the servers that don't need a keychain.
func TestKeychain_MissingKeychainRefusesOnlyItsServers(t *testing.T) {
	t.Parallel()
	raw := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  plain: {http: {url: %[1]q}}\n  far: {http: {url: %[1]q, headers: {Authorization: \"${keychain:far/TOKEN}\"}}}\n", raw.URL),
		Policy:  "version: 1\nname: p\ndefault: deny\n",
	})
	s.Env = []string{"DBUS_SESSION_BUS_ADDRESS=unix:path=" + s.Dir + "/none"}
	p := stack.Start(t, s)
	stack.Connect(t, p.MCP("plain"), stack.AgentToken)
	client := stack.NewClient(t, p.MCP("far"), stack.AgentToken)
	if err := client.Open(); err == nil || !strings.Contains(err.Error(), "its secrets can't be read from the keychain") {
		t.Errorf("the server that needs the keychain: %v", err)
	}
	for _, r := range raw.Requests() {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the server got the header %q", r.Header.Get("Authorization"))
		}
	}
}
