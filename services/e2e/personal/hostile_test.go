package personal_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// hostile is an untrusted string with control characters. It clears the screen with ESC and with the C1 form of that
// sequence, returns to the beginning of the line, reverses the text direction, and begins another line with each kind
// of line break.
const hostile = "x\x1b[2J\u009b2J\a\rFORGED\u202e\u2066\u2028FORGED\u0085FORGED\nFORGED"

// hostileServer is the environment variable that makes the test program act as an MCP server. Its value selects what
// the server does.
const hostileServer = "SLUICE_TEST_HOSTILE_SERVER"

// serveHostile acts as an MCP server with hostile strings, and returns the exit code.
func serveHostile(kind string) int {
	fmt.Fprintln(os.Stderr, hostile)
	if kind == "dies" {
		return 1
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		answer := map[string]any{"jsonrpc": "2.0", "id": m.ID}
		if kind == "fails" {
			answer["error"] = map[string]any{"code": -32000, "message": hostile, "data": hostile}
		} else {
			answer["result"] = hostileResult(m.Method, kind)
		}
		if json.NewEncoder(os.Stdout).Encode(answer) != nil {
			return 1
		}
	}
	return 0
}

func hostileResult(method, kind string) any {
	switch method {
	case "initialize":
		return map[string]any{
			"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]any{"name": hostile, "version": hostile}, "instructions": hostile,
		}
	case "tools/list":
		tool := map[string]any{"name": "list_all", "inputSchema": map[string]any{"type": "object"}}
		if kind == "tools" {
			tool = map[string]any{"name": hostile, "title": hostile, "description": hostile, "inputSchema": map[string]any{
				"type": "object", "properties": map[string]any{hostile: map[string]any{"type": "string", "description": hostile}},
			}}
		}
		return map[string]any{"tools": []any{tool}}
	default:
		return map[string]any{}
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	raw, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// ascii is like quoted, but also escapes all characters that are not ASCII.
func ascii(t *testing.T, text string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range quoted(t, text) {
		if r > unicode.MaxASCII {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// newHostileHome creates a home directory in which the clients' files contain hostile names, commands and secrets. One
// file can't be parsed, and another file refers to a directory with a hostile name.
func newHostileHome(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	project := filepath.Join(h.dir, hostile)
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	played := func(kind string) string {
		return fmt.Sprintf(`%s: {"command": %q, "args": [%s], "env": {%q: %q, "API_KEY": %s}, "`+"\u202e\u009b"+`": 1}`,
			quoted(t, kind+hostile), self, quoted(t, hostile), hostileServer, kind, quoted(t, secret+`"`+secret))
	}
	servers := strings.Join([]string{
		played("dies"), played("fails"), played("tools"), played("plain"),
		fmt.Sprintf(`%s: {"command": %[1]s}`, quoted(t, hostile)),
		fmt.Sprintf(`%s: {"url": "http://127.0.0.1:1/"}`, quoted(t, "url"+hostile)),
		fmt.Sprintf(`%s: {"url": %s}`, quoted(t, "bad"+hostile), quoted(t, "http://127.0.0.1:1/"+hostile)),
		fmt.Sprintf(`%s: {"command": "${`+"\u202e"+`}"}`, quoted(t, "variable"+hostile)),
	}, ",\n")
	h.write(cursorPath, `{"mcpServers": {`+servers+`}, "`+"\u202e\u009b2J"+`": 1}`)
	h.write(claudePath, fmt.Sprintf(`{"projects": {%s: {"mcpServers": {%s}}}}`, quoted(t, project), played("plain")))
	name := ascii(t, hostile) // TOML and YAML have the same escapes
	h.write(".codex/config.toml", "[mcp_servers."+name+"]\ncommand = "+name+"\n")
	h.write(".continue/config.yaml", "mcpServers:\n  - name: "+name+"\n    command: "+name+"\n")
	h.write(vscodePath, `{"servers": {"`+hostile+`": {}, "`+hostile)
	return h
}

// checkPrinted checks that an output contains no control characters except newlines and tabs, and that no line begins
// with the word FORGED, which the hostile string contains after each of its line breaks.
func checkPrinted(t *testing.T, args []string, out string) {
	t.Helper()
	if i := strings.IndexFunc(out, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%v: %q reaches the terminal", args, out[max(0, i-80):min(len(out), i+40)])
	}
	if strings.Contains("\n"+out, "\nFORGED") {
		t.Errorf("%v: a hostile string begins a line in:\n%s", args, out)
	}
}

// Cases X7, S2. Files of clients and servers contain control characters, and a secret that is written with escapes. No
// `sluice init` command prints a control character or the secret.
func TestInit_EscapesHostileTexts(t *testing.T) {
	t.Parallel()
	h := newHostileHome(t)
	cursor := h.read(cursorPath)
	check := func(args ...string) string {
		t.Helper()
		_, out := h.run(args...)
		checkPrinted(t, args, out)
		if !strings.Contains(out, "FORGED") {
			t.Errorf("%v prints no hostile string, but\n%s", args, out)
		}
		if strings.Contains(out, secret) {
			t.Errorf("%v prints the secret:\n%s", args, out)
		}
		return out
	}
	check("init", "--check")
	check("init", "--check", "-o", "json")
	out := check("init", "--yes")
	for _, want := range []string{"plainx", "Wrote ~/.cursor/mcp.json.", "Wrote ~/.claude.json."} {
		if !strings.Contains(out, want) {
			t.Errorf("init does not print %q, but\n%s", want, out)
		}
	}
	check("init", "--check")
	wrapped := h.read(cursorPath)
	h.write(cursorPath, strings.Replace(wrapped, `"stdio"`, `"stdio", `+quoted(t, hostile), 1)) // the entry stays
	check("init", "--undo", "--yes")
	h.write(cursorPath, wrapped)
	_, out = h.run("init", "--undo", "--yes")
	checkPrinted(t, []string{"the second undo"}, out)
	if h.read(cursorPath) != cursor {
		t.Error("undo does not restore the file of Cursor")
	}
}
