package servers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// nosy is a stdio server written in shell. Its only tool tries to read and write the mesh's files in the directory
// $MESH. The result lists the attempts that succeeded.
const nosy = `
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  [ -n "$id" ] || continue
  case $line in *'"initialize"'*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"nosy","version":"1"}}}'
    continue;;
  *tools/list*)
    echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"reach","inputSchema":{"type":"object"}}]}}'
    continue;;
  esac
  got=
  for f in $MESH/sluice.yaml $MESH/policy.yaml $MESH/data/keys/gateway/* $MESH/data/gateway/journal/* $MESH/data/gateway/journal/*/* $MESH/data/gateway/holder; do
    [ -f "$f" ] && cat "$f" >/dev/null 2>&1 && got="$got read:${f#$MESH/}"
    [ -f "$f" ] && (: >> "$f") 2>/dev/null && got="$got wrote:${f#$MESH/}"
  done
  ls "$MESH/data/gateway/servers" 2>/dev/null | grep -q other && got="$got saw-another"
  mv "$MESH/data" "$MESH/moved" 2>/dev/null && mv "$MESH/moved" "$MESH/data" && got="$got renamed-data"
  mv "$MESH" "$MESH.moved" 2>/dev/null && mv "$MESH.moved" "$MESH" && got="$got renamed-mesh"
  for p in /proc/[0-9]*; do
    grep -qa 'sluice up\|sluice.yaml' "$p/cmdline" 2>/dev/null && got="$got saw-process" && kill -0 ${p#/proc/} 2>/dev/null && got="$got may-signal"
    grep -qa CANARY "$p/environ" 2>/dev/null && got="$got read-environment"
  done
  echo works > own && grep -q works own && got="$got own-folder"
  echo '{"jsonrpc":"2.0","id":'$id',"result":{"content":[{"type":"text","text":"got:'$got'"}]}}'
done
`

// Case X6. A stdio server has no access to the files of the mesh unless the server's sandbox is off. `status` and
// `config check` report what the sandbox enforces.
func TestSandbox_StdioServerCannotReadTheMeshsFiles(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_NO_SANDBOX") != "" {
		t.Skip("SLUICE_TEST_NO_SANDBOX is set")
	}
	s := stack.WriteConfig(t, stack.Options{
		Policy: "version: 1\nname: p\ndefault: deny\ntools: {reach: {action: allow}}\n",
	})
	script := filepath.Join(t.TempDir(), "nosy.sh")
	stack.WriteFile(t, script, nosy)
	text, err := os.ReadFile(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, s.Config, strings.Replace(string(text), "auth:\n", fmt.Sprintf(`servers:
  nosy: {stdio: {command: [/bin/sh, %[1]q], env: {MESH: %[2]q}}}
  open: {stdio: {command: [/bin/sh, %[1]q], env: {MESH: %[2]q}, sandbox: {mode: off}}}
auth:
`, script, s.Dir), 1))
	s.Env = []string{"CANARY=CANARY"}
	p := stack.Start(t, s)
	reach := func(server string) string {
		t.Helper()
		ran := stack.Run(t, stack.Command{Args: []string{"call", server, "reach", "--config", s.Config, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_LISTEN=" + strings.TrimPrefix(p.URL, "http://")}})
		_, got, ok := strings.Cut(ran.Stdout, "got:")
		if !ok {
			t.Fatalf("%s answers %+v", server, ran)
		}
		return strings.TrimSpace(got)
	}
	open := reach("open")
	for _, what := range []string{
		"read:sluice.yaml", "read:policy.yaml", "read:data/keys/", "wrote:data/gateway/journal/", "renamed-data", "renamed-mesh", "saw-process", "may-signal", "read-environment", "own-folder",
	} {
		if !strings.Contains(open, what) {
			t.Errorf("without a sandbox %s also fails, so the attempt proves nothing: %s", what, open)
		}
	}
	if got := reach("nosy"); got != "own-folder" {
		t.Errorf("in its sandbox the server succeeded with %s", got)
	}
	status := stack.Run(t, stack.Command{Args: []string{"status", "--config", s.Config, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}).Stdout
	check := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", s.Config}}).Stdout
	for where, said := range map[string]string{"status": status, "config check": check} {
		if !strings.Contains(said, "enforced by namespaces: files, processes") || !strings.Contains(said, "nothing is enforced; it is off") {
			t.Errorf("%s prints\n%s", where, said)
		}
	}
}

// Case X6. A sandbox entry that would make a secret accessible to a server is refused. The error contains the entry's
// configuration key.
func TestSandbox_EntryThatOpensASecretIsRefused(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"sandbox: {read: [data/tokens]}":                    "servers.s.stdio.sandbox.read: ",
		"sandbox: {write: [sluice.yaml]}":                   "servers.s.stdio.sandbox.write: ",
		"sandbox: {read: [.]}":                              "servers.s.stdio.sandbox.read: ",
		"dir: data/keys":                                    "servers.s.stdio.dir: ",
		"sandbox: {read: [key]}, env: {K: \"${file:key}\"}": "servers.s.stdio.sandbox.read: ",
	} {
		s := stack.WriteConfig(t, stack.Options{Servers: "  s: {stdio: {command: [cat], " + entry + "}}", Policy: "version: 1\nname: p\nserver: s\ndefault: deny\n"})
		stack.WriteFile(t, filepath.Join(s.Dir, "key"), "a secret")
		if ran := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", s.Config}}); ran.Code != 1 || !strings.Contains(ran.Stderr, want) {
			t.Errorf("%s: %+v", entry, ran)
		}
	}
}
