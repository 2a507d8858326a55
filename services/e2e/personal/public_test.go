package personal_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// playedServer and playedNPM are scripts that stand in for the programs in the configurations. The script for npx and
// similar programs starts the demo server. The mesh installs the packages of npx servers with npm, so the script for
// npm installs a package whose program is the demo server.
const (
	playedServer = `#!/bin/sh
exec '%[1]s' demo-server --stdio
`
	playedNPM = `#!/bin/bash
set -e
[ "$1" = install ] || exit 0
for package; do :; done
echo "$package" >/dev/tcp/127.0.0.1/%[2]d
mkdir -p "node_modules/$package" node_modules/.bin
echo "{\"dependencies\": {\"$package\": \"1.0.0\"}}" >package.json
echo '{"name": "played", "version": "1.0.0", "bin": {"played": "played"}}' >"node_modules/$package/package.json"
printf '#!/bin/sh\nexec %[1]s demo-server --stdio\n' >node_modules/.bin/played
chmod 700 node_modules/.bin/played
`
)

// newPublicHome creates a home directory with the given public configurations. files maps their paths in the home
// directory to their names. Their servers can't be started without a network, so small programs with the names of npx,
// docker and others stand in for them. installs counts how often npm has installed each package.
func newPublicHome(t *testing.T, files map[string]string) (h *home, texts map[string]string, installs *installCount) {
	t.Helper()
	h, installs = newHome(t), newInstallCount(t)
	programs := t.TempDir()
	for name, script := range map[string]string{"npx": playedServer, "pnpx": playedServer, "docker": playedServer, "npm": playedNPM} {
		if err := os.WriteFile(filepath.Join(programs, name), fmt.Appendf(nil, script, h.program, installs.port), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing listens at the proxy's address, so the test never reaches real servers.
	h.env = append(h.env, "PATH="+programs+":"+os.Getenv("PATH"), "HTTPS_PROXY=http://127.0.0.1:1")
	texts = make(map[string]string)
	for path, name := range files {
		texts[path] = stack.ReadFile(t, filepath.Join("..", "..", "sluice", "internal", "clientconfig", "testdata", "public", name))
		h.write(path, texts[path])
	}
	return h, texts, installs
}

// An installCount counts the installations of packages. It receives the packages' names as lines over TCP, because
// npm's sandbox does not allow npm to write to a file outside the installation.
type installCount struct {
	port int

	mu     sync.Mutex
	counts map[string]int
}

func newInstallCount(t *testing.T) *installCount {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := &installCount{port: listener.Addr().(*net.TCPAddr).Port, counts: make(map[string]int)}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			raw, _ := io.ReadAll(conn)
			_ = conn.Close()
			c.mu.Lock()
			c.counts[strings.TrimSpace(string(raw))]++
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *installCount) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

const desktopPath = ".config/Claude/claude_desktop_config.json"

func TestInit_PublicConfigurationsAreWrappedOrHaveAReason(t *testing.T) {
	t.Parallel()
	h, texts, installs := newPublicHome(t, map[string]string{
		desktopPath: "claude-desktop-docker.json", vscodePath: "vscode-inputs.json", cursorPath: "cursor-relative.json",
		".codex/config.toml": "codex-comments.toml",
	})
	h.check(0, []string{"init", "--yes"},
		"obsidianLocalRest: stays as it is, because it refers to ${input:obsidian-api-key}, which only the client can resolve",
		"docs: stays as it is, because it has a path that depends on the folder of the client",
		"exa: stays as it is, because it does not work without the mesh either",
		"specd: stays as it is, because it has a path that depends on the folder of the client",
		"Claude Desktop starts brave-search behind the mesh.", "Claude Desktop starts filesystem behind the mesh.",
		"Claude Desktop starts github behind the mesh.", "Claude Desktop starts gdrive behind the mesh.",
		"Claude Desktop starts google-workspace-mcp behind the mesh.")
	// The mesh starts the packages that `sluice init` has installed when it tried out the servers. They are not
	// installed a second time.
	if counts := installs.all(); len(counts) == 0 || slices.Max(slices.Collect(maps.Values(counts))) != 1 {
		t.Errorf("npm installed these packages so often for the mesh: %v", counts)
	}
	for path, text := range texts {
		if now := h.read(path); path == desktopPath {
			if strings.Count(now, `"--as"`) != 5 || strings.Contains(now, "replaced") { // the secrets end with this word
				t.Errorf("%s has the content\n%s", path, now)
			}
		} else if now != text {
			t.Errorf("%s was changed:\n%s", path, now)
		}
	}
	h.check(1, []string{"init", "--check"}, "5 server(s) behind the mesh, 4 without it, 0 file(s) that can't be read")
	h.check(0, []string{"init", "--undo", "--yes"}, "~/"+desktopPath+" has the content that it had before init, byte for byte")
	for path, text := range texts {
		if h.read(path) != text {
			t.Errorf("%s is not restored", path)
		}
	}
}

func TestInit_APublicConfigurationThatCannotBeParsedIsRefused(t *testing.T) {
	t.Parallel()
	h, texts, _ := newPublicHome(t, map[string]string{desktopPath: "claude-desktop-hash.json", cursorPath: "cursor-relative.json"})
	h.check(2, []string{"init", "--check"}, "claude-desktop: ~/"+desktopPath+" can't be read: ", "line 1, column 1", "1 file(s) that can't be read")
	h.check(1, []string{"init", "--yes"}, "Claude Desktop: ~/"+desktopPath+" can't be read, and stays as it is: ", "Nothing to do")
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
	for path, text := range texts {
		if h.read(path) != text {
			t.Errorf("%s was changed", path)
		}
	}
	if _, err := os.Stat(filepath.Join(h.dir, ".config/sluice")); err == nil {
		t.Error("init wrote a configuration of the mesh")
	}
}
