//go:build compose

package compose_test

import (
	"strings"
	"testing"
)

// ownServers and ownPolicies are the additions that deploy/README.md describes for servers.yaml. ownServers is added to
// sluice.yaml. ownPolicies contains additional policy files.
const ownServers = `  everything: {http: {url: http://everything:8000/mcp}}
  files: {http: {url: http://files:8000/mcp}}
`

var ownPolicies = map[string]string{
	"everything.yaml": `version: 1
server: everything
default: deny
tools:
  echo: {action: allow}
`,
	"files.yaml": `version: 1
server: files
default: deny
tools:
  read_text_file: {action: allow}
  write_file: {action: allow}
`,
}

// serverStories calls servers that would otherwise be started with npx. Here, each of them runs in its own container.
func serverStories(t *testing.T, d *deployment) {
	call := func(t *testing.T, args ...string) (string, error) {
		t.Helper()
		return d.tryRun(t, commandTime, "docker", append([]string{"compose", "run", "--rm", "sluice", "call"}, args...)...)
	}
	t.Run("a server over HTTP", func(t *testing.T) {
		if got, err := call(t, "everything", "echo", "--arg", "message=tea"); err != nil || !strings.Contains(got, "tea") {
			t.Errorf("the command prints %s, %v", got, err)
		}
	})
	t.Run("a server over stdio", func(t *testing.T) {
		if got, err := call(t, "files", "write_file", "--arg", "path=/shared/tea.txt", "--arg", "content=green"); err != nil {
			t.Fatalf("the command prints %s, %v", got, err)
		}
		if got, err := call(t, "files", "read_text_file", "--arg", "path=/shared/tea.txt"); err != nil || !strings.Contains(got, "green") {
			t.Errorf("the command prints %s, %v", got, err)
		}
	})
	t.Run("a tool that policy does not name", func(t *testing.T) {
		if got, err := call(t, "files", "create_directory", "--arg", "path=/shared/new"); err == nil || !strings.Contains(err.Error(), "Denied by policy") {
			t.Errorf("the command prints %s, %v", got, err)
		}
	})
	t.Run("the containers have no files of the mesh, and nothing is written outside a volume", func(t *testing.T) {
		for _, service := range []string{"everything", "files"} {
			look := []string{"compose", "exec", service, "node", "-e", `const fs = require("fs");
				const there = ["/certs", "/data", "/etc/sluice", "/operator"].filter(p => fs.existsSync(p));
				let written = true; try { fs.writeFileSync("/srv/new", "x") } catch (e) { written = e.code }
				console.log(JSON.stringify([there, written, Object.keys(process.env).filter(k => k.startsWith("SLUICE"))]))`}
			if got := strings.TrimSpace(d.run(t, commandTime, "docker", look...)); got != `[[],"EROFS",[]]` {
				t.Errorf("%s has %s", service, got)
			}
		}
	})
}
