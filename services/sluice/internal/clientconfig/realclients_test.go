package clientconfig_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

// A realClient is a client from npm, and the command of this client that lists the configured servers.
type realClient struct {
	id string
	// program is the path of the program in node_modules. A program that ends with .js is started with node.
	program string
	args    []string
	env     []string
	// want contains parts of the output. SLUICE stands for the path of the program in the entry.
	want []string
}

// realClients returns the clients that can be installed with npm. Claude Code, OpenCode and Gemini CLI connect to the
// server. The other clients only read the file.
func realClients() []realClient {
	return []realClient{
		{
			id: "claude-code", program: "@anthropic-ai/claude-code-linux-x64/claude", args: []string{"mcp", "list"},
			env:  []string{"DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
			want: []string{"probe: SLUICE demo-server --stdio", "Connected"},
		},
		{
			id: "opencode", program: "opencode-linux-x64/bin/opencode", args: []string{"mcp", "list"},
			want: []string{"probe", "connected", "SLUICE demo-server --stdio"},
		},
		{
			id: "gemini", program: "@google/gemini-cli/bundle/gemini.js", args: []string{"mcp", "list"},
			env:  []string{"GEMINI_CLI_TRUST_WORKSPACE=true"},
			want: []string{"probe: SLUICE demo-server --stdio (stdio) - Connected"},
		},
		{
			id: "codex", program: "@openai/codex/bin/codex.js", args: []string{"mcp", "list", "--json"},
			want: []string{`"name": "probe"`, `"enabled": true`, `"command": "SLUICE"`},
		},
		{
			id: "copilot", program: "@github/copilot-linux-x64/copilot", args: []string{"mcp", "get", "probe"},
			want: []string{"Status: Enabled", "Command: SLUICE demo-server --stdio", "Tools: * (all)"},
		},
		{
			id: "cline", program: "@cline/cli-linux-x64/bin/cline", args: []string{"config", "mcp", "--json"},
			want: []string{`"name":"probe","transportType":"stdio","disabled":false`},
		},
	}
}

// The test uses StdioEdit to write an entry into a new file of each client that can be installed with npm. The client
// must list the entry. `make test-clients` installs the clients, which need about 2 GB.
func TestRealClients_ListTheEntry(t *testing.T) {
	t.Parallel()
	modules, programs := os.Getenv("SLUICE_TEST_CLIENTS"), os.Getenv("SLUICE_TEST_PROGRAMS")
	if modules == "" || programs == "" {
		t.Skip("run make test-clients, which sets SLUICE_TEST_CLIENTS and SLUICE_TEST_PROGRAMS")
	}
	sluice := filepath.Join(programs, "sluice")
	for _, c := range realClients() {
		t.Run(c.id, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			writeProbe(t, c.id, home, sluice)
			output := c.run(t, modules, home)
			for _, want := range c.want {
				if want = strings.ReplaceAll(want, "SLUICE", sluice); !strings.Contains(output, want) {
					t.Errorf("%q is missing in the output:\n%s", want, output)
				}
			}
			t.Log(output)
		})
	}
}

// writeProbe writes a client's user file with one entry, which starts the demo server.
func writeProbe(t *testing.T, id, home, sluice string) {
	t.Helper()
	c, ok := clientconfig.Find(id)
	if !ok {
		t.Fatalf("%s is not known", id)
	}
	f := c.Files(clientconfig.System{OS: "linux", Home: home, Getenv: func(string) string { return "" }}, "")[0]
	change, err := configedit.Apply(f.Layout, nil, f.StdioEdit("probe", nil, sluice, []string{"demo-server", "--stdio"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Path, change.After, 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs a client and returns its output. The client uses the given home directory, and has no other credentials or
// projects.
func (c realClient) run(t *testing.T, modules, home string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := append([]string{filepath.Join(modules, c.program)}, c.args...)
	if strings.HasSuffix(c.program, ".js") {
		command = append([]string{"node"}, command...)
	}
	project := filepath.Join(home, "project")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.WaitDelay = project, 5*time.Second
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "NO_COLOR=1"}, c.env...)
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v", c.id, err)
	}
	return string(output)
}
