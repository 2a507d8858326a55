package servers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// homely is a stdio server written in shell. Its only tool reads and writes files in the server's HOME and in the HOME
// of the gateway's user, which is $REAL. The result lists the attempts that succeeded.
const homely = `
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  [ -n "$id" ] || continue
  case $line in *'"initialize"'*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"homely","version":"1"}}}'
    continue;;
  *tools/list*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"login","inputSchema":{"type":"object"}}]}}'
    continue;;
  esac
  got=
  grep -q my-cluster "$HOME/.kube/config" 2>/dev/null && got="$got kube"
  grep -q my-token "$HOME/.config/gh/hosts.yml" 2>/dev/null && got="$got gh"
  (: >> "$HOME/.kube/config") 2>/dev/null && got="$got wrote-kube"
  (: > "$HOME/.kube/new") 2>/dev/null && got="$got new-in-kube"
  (: >> "$REAL/.kube/config") 2>/dev/null && got="$got wrote-real-kube"
  cat "$REAL/.aws/credentials" >/dev/null 2>&1 && got="$got real-aws"
  (: > "$REAL/new") 2>/dev/null && got="$got new-in-real"
  ls "$REAL/.aws" >/dev/null 2>&1 && got="$got listed-aws"
  mkdir -p "$HOME/.cache" && (: > "$HOME/.cache/x") && got="$got own-cache"
  mkdir -p "$HOME/.kube" && (: > "$HOME/.kube/cache") 2>/dev/null && got="$got own-kube"
  echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"got:'$got'."}]}}'
done
`

// A server reads ~/.kube/config. Without sandbox.home, the server does not find the file, because its own HOME is
// private. With sandbox.home, the server finds the listed directories in its HOME, can only read them, and can't access
// the rest of the user's HOME. After sandbox.home is removed from the configuration, the links in the private HOME are
// gone.
func TestHome_ServerReadsOnlyTheNamedEntries(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_NO_SANDBOX") != "" {
		t.Skip("SLUICE_TEST_NO_SANDBOX is set")
	}
	home := t.TempDir()
	for name, text := range map[string]string{".kube/config": "my-cluster", ".aws/credentials": "my-key", ".config/gh/hosts.yml": "my-token"} {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, path, text)
	}
	script := filepath.Join(home, "bin", "kubectl-mcp.sh") // a program in HOME
	if err := os.Mkdir(filepath.Dir(script), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, script, "#!/bin/sh"+homely)
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  one: {stdio: {command: [%q], env: {REAL: %q}}}\n  all: {stdio: {command: [%[1]q], env: {REAL: %[2]q}, per: shared}}\n", script, home),
		Policy:  "version: 1\nname: p\ndefault: deny\ntools: {login: {action: allow}}\n",
	})
	s.Env = []string{"HOME=" + home}
	check := func(want string, notes bool) {
		t.Helper()
		ran := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", s.Config}, Env: s.Env})
		if got := strings.Contains(ran.Stdout+ran.Stderr, "sandbox: {home: [.kube]}"); got != notes {
			t.Errorf("config check names the line: %v; want %v: %s%s", got, notes, ran.Stdout, ran.Stderr)
		}
		p := stack.Start(t, s)
		for _, server := range []string{"one", "all"} {
			got := stack.Connect(t, p.MCP(server), stack.AgentToken).Call("login", "{}").Text(t)
			if got != "got: "+want+"." {
				t.Errorf("%s: %s want %s", server, got, want)
			}
		}
		if err := p.Stop(t); err != nil {
			t.Error(err)
		}
	}
	// Without sandbox.home, the server can also access the rest of the user's HOME.
	check("wrote-real-kube real-aws new-in-real listed-aws own-cache own-kube", true)
	old := stack.ReadFile(t, s.Config)
	stack.WriteFile(t, s.Config, strings.ReplaceAll(old, "env: {REAL", "sandbox: {home: [.kube, .config/gh]}, env: {REAL"))
	check("kube gh own-cache", false)
	if text := stack.ReadFile(t, filepath.Join(home, ".kube", "config")); text != "my-cluster" {
		t.Errorf("the file is now %q", text)
	}
	stack.WriteFile(t, s.Config, old)
	check("wrote-real-kube real-aws new-in-real listed-aws own-cache own-kube", true)
}
