package clientsetup_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

func undo(client string) string { return "`sluice init --undo " + client + "`" }

// checked returns the entry named n in a file after the given Behind has checked it.
func checked(t *testing.T, b clientsetup.Behind, client string, project bool, entry string) clientconfig.Entry {
	t.Helper()
	c, _ := clientconfig.Find(client)
	sys := clientconfig.System{OS: "linux", Home: "/home/eve", Getenv: func(string) string { return "" }}
	files := c.Files(sys, "/p")
	f := files[0]
	if project {
		f = files[len(files)-1]
	}
	entries, err := f.Entries([]byte(`{"mcpServers": {"n": ` + entry + `}}`))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	b.Check(f, entries)
	return entries[0]
}

func TestBehind_AcceptsOnlyEntriesThatStartThisProgramForTheMesh(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program, link, other := filepath.Join(dir, "sluice"), filepath.Join(dir, "sluice-link"), filepath.Join(dir, "sluice-evil")
	for _, path := range []string{program, other} {
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	b := clientsetup.Behind{
		Program: program, Config: "/c/sluice.yaml", Servers: func(name string) bool { return name == "notes" }, Undo: undo,
		Elsewhere: func(url, client string) bool { return url == "https://mesh.example" && client == "cursor" },
	}
	entry := func(command, args, rest string) string {
		return `{"command": "` + command + `", "args": [` + args + `]` + rest + `}`
	}
	proc := filepath.Join(dir, "sluice-proc")
	if err := os.Symlink("/proc/self/exe", proc); err != nil {
		t.Fatal(err)
	}
	const shared = `"stdio", "--server", "notes", "--as", "cursor"`
	const notes = shared + `, "--config", "/c/sluice.yaml"`
	for _, c := range []struct {
		name, entry, fault string
		project            bool
	}{
		{name: "as init writes it", entry: entry(program, notes, "")},
		{name: "through a link", entry: entry(link, notes, "")},
		{name: "in a project, with a path", entry: entry(program, shared, ""), project: true},
		{name: "in a project, through a link", entry: entry(link, shared, ""), project: true, fault: "a link"},
		{name: "in a project, with a configuration", entry: entry(program, notes, ""), project: true, fault: "belongs to a project"},
		{name: "without a configuration", entry: entry(program, shared, ""), fault: "does not name the configuration"},
		{name: "with another configuration", entry: entry(program, shared+`, "--config", "/tmp/sluice.yaml"`, ""), fault: "does not name the configuration"},
		{name: "through a link in /proc", entry: entry(proc, notes, ""), fault: "not this program"},
		{name: "another order, all servers, and members of the client", entry: entry(program, `"stdio", "--as", "cursor", "--config", "/c/sluice.yaml"`, `, "timeout": 5, "env": {}`)},
		{name: "a mesh elsewhere and a configuration", entry: entry(program, notes+`, "--url", "https://mesh.example"`, ""), fault: "has arguments that init does not write"},
		{name: "a mesh elsewhere", entry: entry(program, `"stdio", "--server", "x", "--as", "cursor", "--url", "https://mesh.example"`, "")},
		{name: "an unknown mesh elsewhere", entry: entry(program, `"stdio", "--server", "x", "--as", "cursor", "--url", "https://evil.example"`, ""), fault: "no token"},
		{name: "another program", entry: entry(other, notes, ""), fault: "not this program"},
		{name: "a missing program", entry: entry(filepath.Join(dir, "sluice-old"), notes, ""), fault: "no such file"},
		{name: "a relative path", entry: entry("./sluice", notes, ""), fault: "not an absolute path"},
		{name: "a name in a file of the user", entry: entry("sluice", notes, ""), fault: "not an absolute path"},
		{name: "an unknown server", entry: entry(program, `"stdio", "--server", "gone", "--as", "cursor", "--config", "/c/sluice.yaml"`, ""), fault: "does not have"},
		{name: "another client", entry: entry(program, `"stdio", "--server", "notes", "--as", "codex"`, ""), fault: "token of codex"},
		{name: "another data directory", entry: entry(program, `"stdio", "--data", "/tmp", "--as", "cursor"`, ""), fault: "--data"},
		{name: "a flag with =", entry: entry(program, `"stdio", "--server=notes", "--as", "cursor"`, ""), fault: "has arguments that init does not write"},
		{name: "a flag twice", entry: entry(program, notes+`, "--as", "cursor"`, ""), fault: "has arguments that init does not write"},
		{name: "a flag without a value", entry: entry(program, notes+`, "--url"`, ""), fault: "has arguments that init does not write"},
		{name: "no client", entry: entry(program, `"stdio", "--server", "notes"`, ""), fault: "has arguments that init does not write"},
		{name: "an environment variable", entry: entry(program, notes, `, "env": {"XDG_DATA_HOME": "/tmp"}`), fault: "XDG_DATA_HOME"},
		{name: "a working directory", entry: entry(program, notes, `, "cwd": "/tmp"`), fault: "/tmp"},
		{name: "a file of environment variables", entry: entry(program, notes, `, "envFile": "/tmp/evil.env"`), fault: "envFile"},
		{name: "environment variables that are not a map", entry: entry(program, notes, `, "env": "HOME=/tmp"`), fault: "settings that init does not write"},
		{name: "another transport", entry: entry(program, notes, `, "type": "sse"`), fault: "HTTP+SSE"},
		{name: "a transport without a URL", entry: entry(program, notes, `, "type": "http"`), fault: "\"url\""},
		{name: "a URL", entry: entry(program, notes, `, "url": "https://example.com"`), fault: "example.com"},
	} {
		e := checked(t, b, "cursor", c.project, c.entry)
		if c.fault == "" && (!e.Wrapped || e.Fault != "") || c.fault != "" && (e.Wrapped || !strings.Contains(e.Fault, c.fault)) {
			t.Errorf("%s: wrapped: %t, fault %q, want %q", c.name, e.Wrapped, e.Fault, c.fault)
		}
	}
	if e := checked(t, clientsetup.Behind{Program: program, NoMesh: "no mesh yet", Undo: undo}, "cursor", false, entry(program, notes, "")); e.Wrapped || !strings.Contains(e.Fault, "no mesh yet") {
		t.Errorf("without a mesh: %+v", e)
	}
	if e := checked(t, b, "cursor", false, entry("npx", `"-y", "x"`, "")); e.Wrapped || e.Fault != "" {
		t.Errorf("another server: %+v", e)
	}
	if e := checked(t, clientsetup.Behind{}, "cursor", false, entry(program, notes, "")); e.Wrapped {
		t.Errorf("the zero value accepts %+v", e)
	}
}

// Claude Code and Copilot CLI read the same file .mcp.json of a project, so the entries in it can name either client.
func TestBehind_AcceptsTheOtherClientOfASharedFile(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "sluice")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	b := clientsetup.Behind{Program: program, Servers: func(string) bool { return true }, Undo: undo}
	for as, want := range map[string]bool{"claude-code": true, "copilot": true, "cursor": false, "unknown": false} {
		e := checked(t, b, "claude-code", true, `{"command": "`+program+`", "args": ["stdio", "--server", "notes", "--as", "`+as+`"]}`)
		if e.Wrapped != want {
			t.Errorf("--as %s: wrapped: %t, %s", as, e.Wrapped, e.Fault)
		}
	}
}
