package hooksetup_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// newProtected returns a Protected for a new home directory, which contains a project and links.
func newProtected(t *testing.T) (p hooksetup.Protected, home string) {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"app/.claude", "app/src", "app/conf", "mesh/config", "mesh/data", "dots/codex"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"app/link": ".claude", "app/src/file": "../.claude/settings.local.json", "mesh/cfg": "config", ".codex": "dots/codex",
		"app/deep": "src/../../mesh", "app/loop": "loop", ".gemini": "app/conf",
	} {
		if err := os.Symlink(to, filepath.Join(home, name)); err != nil {
			t.Skip("this system has no symbolic links")
		}
	}
	getenv := func(string) string { return "" }
	return hooksetup.Protected{
		System: clientconfig.System{OS: runtime.GOOS, Home: home, Getenv: getenv},
		Own:    []string{filepath.Join(home, "mesh", "cfg"), filepath.Join(home, "mesh", "data")},
		Data:   filepath.Join(home, "mesh", "data"),
	}, home
}

// marked returns the path that Mark adds to the arguments of a call, or "" if it adds none.
func marked(t *testing.T, p hooksetup.Protected, dir, tool string, arguments map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Mark(dir, tool, raw)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	for name, value := range arguments {
		if _, isText := value.(string); isText && got[name] != value {
			t.Errorf("%s: %s has become %v", raw, name, got[name])
		}
	}
	path, _ := got[hosttools.ProtectedFile].(string)
	return path
}

func TestProtected_MarksChangesOfSettings(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	app := filepath.Join(home, "app")
	for _, name := range []string{
		home + "/.claude/settings.json", home + "/.claude.json", home + "/.config/zed/settings.json", home + "/.cursor/mcp.json",
		app + "/.claude/settings.local.json", ".claude/settings.local.json", "src/../.claude/settings.json", "./.mcp.json",
		"../../elsewhere/.mcp.json", "/other/project/.gemini/settings.json", "/other/.codex/hooks.json", ".CLAUDE/Settings.Local.JSON",
		".Mcp.json", " .mcp.json ", "~/.claude/settings.json", ".claude/settings.json.", ".claude/settings.json::$DATA",
		".clau\u200bde/settings.json", ".cursor/mcp.json", ".continue/mcpServers/x.yaml", ".codex/config.toml", ".vscode/mcp.json",
		"link/settings.json", "link/settings.local.json", "src/file", "deep/data/tokens/operator", "deep/cfg/sluice.yaml",
		home + "/mesh/config/policies/host-codex.yaml", home + "/mesh/cfg/sluice.yaml", home + "/mesh/data", home + "/dots/codex/hooks.json",
		"conf/settings.json", home + "/.gemini/settings.json",
	} {
		for tool, argument := range map[string]string{"Write": "file_path", "NotebookEdit": "notebook_path", "replace": "file_path"} {
			if got := marked(t, p, app, tool, map[string]any{argument: name}); got == "" {
				t.Errorf("%s of %q is not marked", tool, name)
			}
		}
		patch := "*** Begin Patch\n*** Update File: a.txt\n@@\n-a\n+b\n  *** Update File: " + name + "\n*** End Patch\n"
		for _, argument := range []string{"command", "input"} {
			if got := marked(t, p, app, "apply_patch", map[string]any{argument: patch}); got == "" {
				t.Errorf("a patch of %q in %s is not marked", name, argument)
			}
		}
		moved := strings.ReplaceAll(patch, "  *** Update File", "*** Move to")
		if got := marked(t, p, app, "apply_patch", map[string]any{"command": moved}); got == "" {
			t.Errorf("a patch that moves a file to %q is not marked", name)
		}
	}
}

// Definitions of agents, skills, commands, plugins and extensions can contain MCP servers, hooks and shell commands.
// Therefore changes to them are marked.
func TestProtected_MarksChangesOfDefinitions(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	p.System.Getenv = func(name string) string {
		return map[string]string{"CLAUDE_CONFIG_DIR": home + "/cc", "CODEX_HOME": home + "/cx"}[name]
	}
	app := filepath.Join(home, "app")
	if err := os.Symlink("../src", filepath.Join(app, ".claude", "skills")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		".claude/agents/a.md", ".claude/skills/a/SKILL.md", home + "/.claude/commands/a/b.md", "/other/.claude/plugins/a/.mcp.json",
		".Claude/Workflows/a.js", "sub/.gemini/extensions/a/gemini-extension.json", ".gemini/agents/a.md", ".gemini/commands/a.toml",
		home + "/.gemini/policies/a.toml", "/other/.codex/agents/a/b.toml", ".codex/prompts/a.md", home + "/cc/agents/a.md",
		home + "/cc/skills/a/b", home + "/cx/rules/a", "src/new.md", ".gemini/.env", "/other/.gemini/.env",
	} {
		if got := marked(t, p, app, "Write", map[string]any{"file_path": name}); got == "" {
			t.Errorf("%q is not marked", name)
		}
	}
	for client, want := range map[string]bool{"gemini": true, "claude-code": false, hosttools.Codex: false} {
		p.Client = client
		if got := marked(t, p, app, "write_file", map[string]any{"file_path": "sub/.env"}); (got != "") != want {
			t.Errorf("%s: .env is marked with %q", client, got)
		}
	}
}

// APFS ignores case according to Unicode case folding, which does more than a conversion to lower case.
func TestProtected_FoldsNamesAsFileSystemsDo(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	p.Own = append(p.Own, filepath.Join(home, "Straße", "µ"))
	for _, name := range []string{
		".claude/\u017fettings.json", ".gemini/tru\ufb06edFolders.json", "\uff0emcp.json", ".mcp\ufe0f.json", ".mcp.js\u034fon",
		home + "/STRASSE/\u039c/a", home + "/stra\u017fse/\u03bc",
	} {
		if got := marked(t, p, home, "Write", map[string]any{"file_path": name}); got == "" {
			t.Errorf("%q is not marked", name)
		}
	}
	for _, name := range []string{".claude/fettings.json", home + "/strase/m"} {
		if got := marked(t, p, home, "Write", map[string]any{"file_path": name}); got != "" {
			t.Errorf("%q is marked with %s", name, got)
		}
	}
}

func TestProtected_LeavesOtherCalls(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	app := filepath.Join(home, "app")
	for _, name := range []string{"a.txt", "src/settings.json", ".claude/CLAUDE.md", "mcp.json", "loop/x", home + "/mesh/other", "x.claude.json", "link/notes.md", "skills/a.md", ".claude/x/agents/a.md", ".codexes/a"} {
		if got := marked(t, p, app, "Write", map[string]any{"file_path": name}); got != "" {
			t.Errorf("%q is marked with %s", name, got)
		}
	}
	if got := marked(t, p, app, "Read", map[string]any{"file_path": ".mcp.json"}); got != "" {
		t.Errorf("a tool that reads is marked with %s", got)
	}
}

// A call whose arguments do not name the file could change any file, so it is marked.
func TestProtected_MarksCallsWithoutAFile(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	for tool, arguments := range map[string]map[string]any{
		"Write": {"file_path": []string{".mcp.json"}}, "Edit": {}, "MultiEdit": {"path": "a.txt"}, "apply_patch": {"command": "x"},
	} {
		if got := marked(t, p, home, tool, arguments); !strings.HasPrefix(got, "unknown") {
			t.Errorf("%s with %v is marked with %q", tool, arguments, got)
		}
	}
}

// A program that knows the tokens in the data directory can approve calls. Therefore no tool of a client may read these
// tokens. Files that people edit stay readable.
func TestProtected_MarksReadsOfSecrets(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	app := filepath.Join(home, "app")
	tools := map[string]string{
		"Read": "file_path", "LSP": "filePath", "Grep": "path", "Glob": "path", "read_file": "file_path", "view_image": "path",
		"grep_search": "dir_path", "glob": "dir_path", "list_directory": "dir_path",
	}
	for tool, argument := range tools {
		for _, name := range []string{
			home + "/mesh/data/tokens/operator", home + "/mesh/data", "../mesh/data/secrets/a", "deep/data/tokens/operator", "~/mesh/data/x",
		} {
			if got := marked(t, p, app, tool, map[string]any{argument: name, "pattern": "a"}); got == "" {
				t.Errorf("%s of %q is not marked", tool, name)
			}
		}
		for _, name := range []string{"a.txt", home + "/mesh/config/policies/host-codex.yaml", home + "/.claude/settings.json", home + "/mesh/database"} {
			if got := marked(t, p, app, tool, map[string]any{argument: name, "pattern": "a"}); got != "" {
				t.Errorf("%s of %q is marked with %s", tool, name, got)
			}
		}
	}
}

func TestProtected_MarksSearchesOfSecrets(t *testing.T) {
	t.Parallel()
	p, home := newProtected(t)
	data, app := filepath.Join(home, "mesh", "data"), filepath.Join(home, "app")
	for _, tt := range []struct {
		dir, tool string
		arguments map[string]any
		marked    bool
	}{
		{data, "Grep", map[string]any{"pattern": "a"}, true},
		{app, "Grep", map[string]any{"pattern": data}, false}, // a regular expression
		{app, "Glob", map[string]any{"pattern": data + "/**"}, true},
		{app, "Glob", map[string]any{"pattern": "data/*", "path": "../mesh"}, true},
		{app, "glob", map[string]any{"pattern": "**/*.go"}, false},
		{app, "read_many_files", map[string]any{"include": []string{"a.txt", "../mesh/data/tokens/*"}}, true},
		{app, "read_many_files", map[string]any{"include": []string{"src/**"}}, false},
		{app, "read_many_files", map[string]any{}, true},
		{app, "Read", map[string]any{"path": []string{data}}, true},
		{app, "Skill", map[string]any{"path": data}, false},
	} {
		if got := marked(t, p, tt.dir, tt.tool, tt.arguments); (got != "") != tt.marked {
			t.Errorf("%s with %v in %s is marked with %q", tt.tool, tt.arguments, tt.dir, got)
		}
	}
}
