package personal_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/pki"
)

// An elsewhere is a remote mesh that is run by a team. It uses TLS and its own certificate authority, and has the
// servers notes, my-notes, local and extra.
type elsewhere struct {
	*stack.Process

	url, ca string
}

func startElsewhere(t *testing.T, h *home) *elsewhere {
	t.Helper()
	authority, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := authority.Issue(pki.Leaf{Name: "mesh"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		pki.WriteFile(path("mesh.pem"), cert, 0o600), pki.WriteFile(path("mesh-key.pem"), key, 0o600), pki.WriteFile(path("ca.pem"), authority.CertPEM(), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("{stdio: {command: [%q, demo-server, --stdio]}}", h.program)
	s := stack.WriteConfig(t, stack.Options{
		Servers: "  notes: " + server + "\n  my-notes: " + server + "\n  local: " + server + "\n  extra: " + server,
		Policy:  "version: 1\nname: team\ndefault: deny\ntools:\n  list_notes: {action: allow}\n  get_note: {action: allow}\n",
		Extra:   fmt.Sprintf("listen_tls: {cert: %q, key: %q}", path("mesh.pem"), path("mesh-key.pem")),
	})
	p := stack.Start(t, s)
	return &elsewhere{Process: p, url: strings.Replace(p.URL, "127.0.0.1", "localhost", 1), ca: path("ca.pem")}
}

// tokenFile writes a token to a file, and returns its path.
func tokenFile(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	stack.WriteFile(t, path, token+"\n")
	return path
}

// unchanged checks that the clients' files have not changed and that no data directory was created.
func (h *home) unchanged() {
	h.t.Helper()
	if h.read(claudePath) != claudeFile(h) || h.read(cursorPath) != cursorFile(h) {
		h.t.Error("a file of a client was changed")
	}
	if _, err := os.Stat(h.data()); err == nil {
		h.t.Error("the data directory was created")
	}
}

func TestInitHTTP_EntriesUseAMeshElsewhereAndUndoRestoresTheBytes(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	e := startElsewhere(t, h)
	run := func(client string) []string {
		return []string{"init", client, "--http", e.url + "/mcp/", "--token-file", tokenFile(t, stack.AgentToken), "--ca-file", e.ca, "--yes"}
	}
	out := h.check(0, run("claude-code"),
		"init uses the token in ", "broken: stays as it is, because it is not at the mesh", "local: stays as it is, because it works in", "on this machine",
		"The mesh also has extra, notes, which claude-code does not use",
		"my-notes: 2 of 7 tools", "not at the mesh: ", "delete_note", "Claude Code starts My Notes at the mesh.")
	out += h.check(0, run("cursor"), "notes: 2 of 7 tools", "Cursor starts notes at the mesh.")
	if strings.Contains(out, secret) || strings.Contains(out, stack.AgentToken) {
		t.Errorf("the output contains a secret:\n%s", out)
	}
	claude, cursor := h.read(claudePath), h.read(cursorPath)
	if strings.Contains(claude+cursor, secret) || strings.Contains(claude+cursor, stack.AgentToken) {
		t.Error("a file of a client contains a secret")
	}
	for _, want := range []string{`"timeout": 9000`, `"args": ["stdio", "--server", "my-notes", "--as", "claude-code", "--url", "` + e.url + `"]`} {
		if !strings.Contains(claude, want) {
			t.Errorf("the file of Claude Code has no %s:\n%s", want, claude)
		}
	}
	if _, found := h.mesh(); found {
		t.Error("init has started a mesh of the person")
	}
	command, args := h.entry(cursorPath, "notes")
	client := h.connect(command, args...)
	if text, isError := h.call(client, "list_notes", nil); isError || !strings.Contains(text, "Welcome") {
		t.Errorf("list_notes returns %s", text)
	}
	if text, isError := h.call(client, "delete_note", map[string]any{"id": "note-1"}); !isError || !strings.Contains(text, "Denied by policy") {
		t.Errorf("delete_note returns %s", text)
	}
	h.check(2, []string{"init", "--check"}, "2 server(s) behind the mesh, 3 without it")
	h.check(0, []string{"init", "cursor", "--http", e.url, "--yes"}, "init uses the stored token of cursor", "Nothing to do") // the token and the authority are stored
	if h.read(claudePath) != claude || h.read(cursorPath) != cursor {
		t.Error("a second run changed something")
	}

	h.check(0, []string{"init", "--undo", "--yes"}, "~/.claude.json has the content that it had before init, byte for byte", "The tokens for the mesh are removed")
	if h.read(claudePath) != claudeFile(h) || h.read(cursorPath) != cursorFile(h) {
		t.Error("the files don't have their old bytes")
	}
	if _, err := os.Stat(filepath.Join(h.data(), "tokens")); err == nil {
		t.Error("the tokens are still there")
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
}

// In each case, `init` can't use the remote mesh, or its arguments are wrong. It writes nothing, and prints what the
// problem is and how to solve it.
func TestInitHTTP_WritesNothingIfTheMeshCanNotBeUsed(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	e := startElsewhere(t, h)
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	moved := httptest.NewServer(http.RedirectHandler("https://mesh.example.com", http.StatusFound))
	t.Cleanup(moved.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	plain := strings.Replace(e.url, "https:", "http:", 1)
	good, unknown, operator := tokenFile(t, stack.AgentToken), tokenFile(t, "no-such-token-0123456789abcdef"), tokenFile(t, stack.OperatorToken)
	for _, c := range []struct {
		name      string
		code      int
		args      []string
		fragments []string
	}{
		{"an unknown token", 1, []string{e.url, "--token-file", unknown, "--ca-file", e.ca}, []string{"refused the token", "sluice token create", "--token-file"}},
		{"an operator's token", 1, []string{e.url, "--token-file", operator, "--ca-file", e.ca}, []string{"refused the token", "approve its own calls", "sluice token create"}},
		{"an unknown authority", 1, []string{e.url, "--token-file", good}, []string{"certificate", "--ca-file"}},
		{"http without agreement", 2, []string{plain, "--token-file", good}, []string{"another user of this machine", "--trust-loopback"}},
		{"no TLS", 1, []string{plain, "--trust-loopback", "--token-file", good}, []string{"https://"}},
		{"another server", 1, []string{other.URL, "--trust-loopback", "--token-file", good}, []string{"is not a Sluice gateway", "404"}},
		{"a redirect", 1, []string{moved.URL, "--trust-loopback", "--token-file", good}, []string{"redirect", "--http"}},
		{"a closed port", 1, []string{gone.URL, "--trust-loopback", "--token-file", good}, []string{"does not answer"}},
		{"two clients", 2, []string{e.url, "claude-code", "--token-file", good, "--ca-file", e.ca}, []string{"name one client"}},
		{"no token", 1, []string{e.url, "--ca-file", e.ca}, []string{"--token-file"}},
		{"no such file", 1, []string{e.url, "--token-file", filepath.Join(h.dir, "none")}, []string{"read the token"}},
		{"http to another machine", 2, []string{"http://mesh.example.com", "--token-file", good}, []string{"https"}},
		{"a secret in the URL", 2, []string{"https://me:pw@mesh.example.com"}, []string{"user"}},
		{"no client has a server of the mesh", 1, []string{e.url, "zed", "--token-file", good, "--ca-file", e.ca}, []string{"extra", "--add"}},
		{"no file for new entries", 1, []string{e.url, "zed", "--add", "--token-file", good, "--ca-file", e.ca}, []string{"Start the client once", "Zed"}},
		{"--check", 2, []string{e.url, "--check"}, []string{"leave out --http"}},
		{"--observe", 2, []string{e.url, "--observe"}, []string{"your own mesh"}},
		{"--token-file alone", 2, nil, []string{"--http"}},
	} {
		args := []string{"init", "--yes"}
		if c.args == nil {
			args = append(args, "--token-file", good)
		} else {
			args = append(append(args, "--http"), c.args...)
			if !slices.Contains(c.args, "zed") {
				args = append(args, "cursor")
			}
		}
		t.Run(c.name, func(t *testing.T) {
			own := *h
			own.t = t
			own.check(c.code, args, c.fragments...)
			own.unchanged()
		})
	}
}

// If entries for the remote mesh already exist, `init` replaces the stored token with the new token. An entry that does
// not use the mesh stays unchanged and does not prevent the replacement.
func TestInitHTTP_ReplacesTheToken(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	e := startElsewhere(t, h)
	h.write(cursorPath, strings.Replace(h.read(cursorPath), `{"mcpServers": {`, `{"mcpServers": {"extra": {"command": "false"},`, 1))
	before := h.read(cursorPath)
	run := func(token string) []string {
		return []string{"init", "cursor", "--http", e.url, "--token-file", tokenFile(t, token), "--ca-file", e.ca, "--yes"}
	}
	h.check(0, run(stack.AgentToken))
	h.check(0, run(stack.OtherToken), "extra: stays as it is", "does not work on this machine", "The token of cursor is replaced")
	if h.read(claudePath) != claudeFile(h) {
		t.Error("init cursor changed the file of Claude Code")
	}
	command, args := h.entry(cursorPath, "notes")
	if text, isError := h.call(h.connect(command, args...), "list_notes", nil); isError {
		t.Errorf("list_notes returns %s", text)
	}
	h.check(0, []string{"stdio", "--url", e.url, "--as", "zed", "--server", "notes"}, "zed has no token", "init --http "+e.url+" zed")
	h.check(0, []string{"init", "--undo", "--yes"}, "byte for byte")
	if h.read(cursorPath) != before {
		t.Error("the file of Cursor does not have its old bytes")
	}
}

// A client without MCP servers gets an entry for each server of the remote mesh.
func TestInitHTTP_AddsEntries(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	e := startElsewhere(t, h)
	const path, before = ".gemini/settings.json", "{\n  \"theme\": \"dark\" // a comment\n}\n"
	h.write(path, before)
	h.check(0, []string{"init", "gemini", "--add", "--http", e.url, "--token-file", tokenFile(t, stack.AgentToken), "--ca-file", e.ca, "--yes"},
		"extra: works at the mesh", "Gemini CLI starts extra at the mesh.", "Gemini CLI starts notes at the mesh.")
	h.check(0, []string{"init", "--check"}, "4 server(s) behind the mesh, 0 without it")
	h.check(0, []string{"init", "--undo", "--yes"}, "byte for byte")
	if got := h.read(path); got != before {
		t.Errorf("the file is %q", got)
	}
}
