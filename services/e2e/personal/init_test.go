package personal_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const secret = "abcDEF0123456789abcdefXYZ"

// claudeFile returns a configuration of Claude Code. It contains a server of the user, a server of a project, a server
// that does not start, and a server with a credential in its arguments. `sluice init` does not change the entry with
// the credential.
func claudeFile(h *home) string {
	return `{
  "numStartups": 3, // a comment
  "mcpServers": {
    "My Notes": {
      "type": "stdio",
      "command": "` + h.program + `",
      "args": ["demo-server", "--stdio"],
      "env": { "API_KEY": "` + secret + `", "LOG_LEVEL": "debug" },
      "timeout": 9000
    },
    "broken": { "command": "false" },
    "keyed": { "command": "npx", "args": ["-y", "some-server", "--api-key", "sk-123456"] }
  },
  "projects": {"` + filepath.Join(h.dir, "p") + `": {"mcpServers": {"local": {"command": "` + h.program + `", "args": ["demo-server", "--stdio"]}}}}
}`
}

// cursorFile returns a configuration of Cursor. It contains the same server as the file of Claude Code, under another
// name, and has Windows line endings.
func cursorFile(h *home) string {
	return "\ufeff{\"mcpServers\": {\r\n\t\"notes\": {\"command\": \"" + h.program + "\", \"args\": [\"demo-server\", \"--stdio\"], \"env\": {\"API_KEY\": \"" + secret + "\", \"LOG_LEVEL\": \"debug\"}}}}\r\n"
}

const (
	claudePath = ".claude.json"
	cursorPath = ".cursor/mcp.json"
	vscodePath = ".config/Code/User/mcp.json"
)

func newClients(t *testing.T) *home {
	t.Helper()
	h := newHome(t)
	if err := os.Mkdir(filepath.Join(h.dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.write(claudePath, claudeFile(h))
	h.write(cursorPath, cursorFile(h))
	h.write(vscodePath, `{"servers": {`)
	return h
}

func TestInit_WrapsServersAndUndoRestoresTheBytes(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(2, []string{"init", "--check"}, "claude-code reaches My Notes without the mesh", "vscode", "can't be read")
	out := h.check(0, []string{"init", "--yes"},
		"VS Code: ~/.config/Code/User/mcp.json can't be read",
		"keyed: stays as it is, because it has what looks like a credential",
		"broken: stays as it is, because it does not work without the mesh either",
		"my-notes: the same 7 tool(s) behind the mesh", "2 ask you: delete_note, refund",
		"1 secret(s) move to files that only you can read",
		"Claude Code starts My Notes behind the mesh.", "Cursor starts notes behind the mesh.", "Claude Code starts local behind the mesh.",
		"Claude Code gives up on calls of My Notes after 9s, but a call that needs approval waits for 45s: set timeout = 60000 in the entry.",
		"An example of a refusal: Claude Code calls sluice_init_example of My Notes", "Denied by policy")
	if strings.Contains(out, secret) || strings.Contains(out, "sk-123456") {
		t.Errorf("the output contains a secret:\n%s", out)
	}
	claude, cursor := h.read(claudePath), h.read(cursorPath)
	config := h.read(".config/sluice/sluice.yaml")
	for name, text := range map[string]string{"Claude Code": claude, "Cursor": cursor, "the mesh": config} {
		if strings.Contains(text, secret) {
			t.Errorf("the file of %s contains the secret", name)
		}
	}
	for _, want := range []string{`"timeout": 9000`, "// a comment", `"broken": { "command": "false" }`, `"args": ["stdio", "--server", "my-notes", "--as", "claude-code", "--config", "` + filepath.Join(h.dir, ".config/sluice/sluice.yaml") + `"]`} {
		if !strings.Contains(claude, want) {
			t.Errorf("the file of Claude Code has no %s:\n%s", want, claude)
		}
	}
	if strings.Count(config, "stdio:") != 2 { // entries with equal definitions share a server
		t.Errorf("the mesh has these servers:\n%s", config)
	}

	h.check(2, []string{"init", "--check"}, "3 server(s) behind the mesh, 2 without it")
	h.check(0, []string{"init", "--yes"}, "Nothing to do")
	if h.read(claudePath) != claude || h.read(cursorPath) != cursor || h.read(".config/sluice/sluice.yaml") != config {
		t.Error("a second run changed something")
	}

	h.check(0, []string{"init", "--undo", "--yes", "cursor"}, "The mesh stays with ~/.config/sluice/sluice.yaml", "its servers my-notes, local, because these clients still use it: claude-code")
	h.check(0, []string{"init", "--undo", "--yes"}, "~/.claude.json has the content that it had before init, byte for byte",
		"Removed: ~/.config/sluice/sluice.yaml, ~/.config/sluice/policies/my-notes.yaml, ~/.config/sluice/policies/local.yaml, 1 stored secret(s), the tokens")
	if h.read(claudePath) != claudeFile(h) || h.read(cursorPath) != cursorFile(h) {
		t.Error("the files don't have their old bytes")
	}
	if _, found := h.mesh(); found {
		t.Error("the mesh still runs")
	}
	for _, gone := range []string{".config/sluice/sluice.yaml", ".config/sluice/policies/my-notes.yaml", ".local/share/sluice/tokens", ".local/share/sluice/secrets/my-notes"} {
		if _, err := os.Stat(filepath.Join(h.dir, gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
}

// entry returns the command and the arguments of a server's entry in a client's file.
func (h *home) entry(path, name string) (command string, args []string) {
	h.t.Helper()
	var file struct {
		Servers map[string]struct {
			Command string
			Args    []string
		} `json:"mcpServers"`
	}
	text := strings.ReplaceAll(strings.TrimPrefix(h.read(path), "\ufeff"), "// a comment", "")
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		h.t.Fatal(err)
	}
	return file.Servers[name].Command, file.Servers[name].Args
}

// Calls behind the mesh that `sluice init` creates are allowed, refused, or held for an approval. The person who owns
// the agents approves the held calls.
func TestInit_CallsRunAreRefusedAndWaitForTheOwner(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes", "cursor"})
	if h.read(claudePath) != claudeFile(h) {
		t.Error("init cursor changed the file of Claude Code")
	}
	command, args := h.entry(cursorPath, "notes")
	client := h.connect(command, args...)
	if text, isError := h.call(client, "list_notes", nil); isError || !strings.Contains(text, "Welcome") {
		t.Errorf("list_notes returns %s", text)
	}
	if text, isError := h.call(client, "no_such_tool", nil); !isError || !strings.Contains(text, "Denied by policy") {
		t.Errorf("an unknown tool returns %s", text)
	}
	type answer struct {
		text    string
		isError bool
	}
	refund := make(chan answer, 1)
	go func() {
		text, isError := h.call(client, "refund", map[string]any{"account": "ana", "amount": "1.00"})
		refund <- answer{text, isError}
	}()
	h.approveOne()
	if got := <-refund; got.isError {
		t.Errorf("the approved refund returns %s", got.text)
	}
	h.check(0, []string{"decisions", "tail"}, "cursor")
}

func TestCallAs_StartsTheMeshAsAClient(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes", "cursor"})
	m, _ := h.mesh()
	h.end(m, syscall.SIGTERM)
	h.check(0, []string{"call", "notes", "list_notes", "--as", "cursor"}, "Welcome")
	h.check(0, []string{"tools", "notes", "--as", "cursor"}, "list_notes")
	h.check(0, []string{"decisions", "tail"}, "cursor")
	h.check(0, []string{"status"}, "used by Cursor")
	h.check(1, []string{"call", "notes", "list_notes", "--as", "zed"}, "zed has no token for your mesh: run `sluice init zed`")
	h.check(1, []string{"call", "notes", "list_notes", "--as", "bogus"}, `your mesh has no client "bogus": its clients are `, "cursor")
	h.check(1, []string{"call", "notes", "list_notes"}, "this is your own mesh, whose calls come from a client: name one with --as, such as --as ", "--as cursor")
}

// A server's program reads files of the user in order to log in. The program gets access to these files, and to no
// other files.
func TestInit_AServerReadsTheFilesWithWhichItLogsIn(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".kube/config", "a cluster")
	h.write(".local/bin/kubectl-mcp", "#!/bin/sh\ntest -f $HOME/.kube/config && exec '"+h.program+"' demo-server --stdio\n")
	if err := os.Chmod(filepath.Join(h.dir, ".local/bin/kubectl-mcp"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.write(cursorPath, `{"mcpServers": {"kubernetes": {"command": "`+filepath.Join(h.dir, ".local/bin/kubectl-mcp")+`"}}}`)
	h.check(0, []string{"init", "--yes"}, "kubernetes has a private HOME, and can read these entries of yours there", ".kube")
	if config := h.read(".config/sluice/sluice.yaml"); !strings.Contains(config, ".kube") {
		t.Errorf("the mesh has this configuration:\n%s", config)
	}
	h.check(0, []string{"call", "kubernetes", "list_notes", "--as", "cursor"}, "Welcome")
}

func TestInitManaged_PrintsTheFileOfTheAdministrator(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(1, []string{"init", "--managed", "claude-code"}, "no server of Claude Code is behind the mesh")
	h.check(2, []string{"init", "--managed"}, "--managed needs one client")
	h.check(1, []string{"init", "--managed", "cursor"}, "Cursor has no file for administrators")
	h.check(0, []string{"init", "--yes", "claude-code"})
	h.check(0, []string{"init", "--managed", "claude-code"}, `"My Notes": {`, `"local": {`, "/etc/claude-code/managed-mcp.json")
	if out := h.check(0, []string{"init", "--managed", "claude-code"}); strings.Contains(out, "broken") {
		t.Errorf("the file has a server that is not behind the mesh:\n%s", out)
	}
}

// `sluice init --undo` restores an entry if the only changed members of the entry are those that belong to the client.
// If the connection in an entry was changed, the entry stays until the undo is forced.
func TestInit_UndoKeepsWhatSomebodyChanged(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes"})
	h.check(2, []string{"init", "--force"}, "--force belongs to --undo")
	changed := strings.NewReplacer(`"numStartups": 3`, `"numStartups": 4`, `"timeout": 9000`, `"timeout": 5000`,
		`"--server", "my-notes", "--as", "claude-code"`, `"--as", "claude-code", "--server", "my-notes"`).Replace(h.read(claudePath))
	h.write(claudePath, changed)
	out := h.check(1, []string{"init", "--undo", "--yes"}, "~/.cursor/mcp.json has the content that it had before init",
		"My Notes stays: it was changed. Before init it was:", `"API_KEY": "[hidden]"`, "The value of API_KEY is in ${file:",
		"init --undo --force", "The mesh stays")
	if strings.Contains(out, secret) {
		t.Errorf("the output has the secret:\n%s", out)
	}
	text := h.read(claudePath)
	for _, want := range []string{`"numStartups": 4`, `"timeout": 5000`, `"local": {"command": "` + h.program + `", "args": ["demo-server", "--stdio"]}`} {
		if !strings.Contains(text, want) {
			t.Errorf("the file has no %s:\n%s", want, text)
		}
	}
	command, args := h.entry(claudePath, "My Notes")
	if text, isError := h.call(h.connect(command, args...), "list_notes", nil); isError {
		t.Errorf("the entry that stays does not work: %s", text)
	}
	h.check(0, []string{"init", "--undo", "--force", "--yes"}, "~/.claude.json: nothing of init is left in it")
	if want := strings.Replace(claudeFile(h), `"numStartups": 3`, `"numStartups": 4`, 1); h.read(claudePath) != want {
		t.Errorf("after undo with force, the file is\n%s", h.read(claudePath))
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
}

// After `sluice init`, a user renames an entry in one client's file and removes another client's file. A client saves
// its file and adds default members. `sluice init --undo` restores the other entries. It keeps the original content of
// the renamed entry until the user removes that entry.
func TestInit_UndoEndsWhenEntriesAreGone(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes"})
	_, rest, _ := strings.Cut(h.read(claudePath), `"broken"`)
	renamed := `"renamed": {"command": "` + h.program + `", "args": ["stdio", "--server", "my-notes", "--as", "claude-code"]},`
	rest = strings.Replace(rest, `sluice.yaml"]`, `sluice.yaml"], "type": "stdio", "env": {}`, 1)
	h.write(claudePath, `{"mcpServers": {`+renamed+` "broken"`+rest)
	if err := os.Remove(filepath.Join(h.dir, cursorPath)); err != nil {
		t.Fatal(err)
	}
	out := h.check(1, []string{"init", "--undo", "--yes"}, "~/.claude.json: My Notes can't be restored: renamed in ~/.claude.json starts its server. Before init it was:",
		"~/.cursor/mcp.json: notes can't be restored: renamed in ~/.claude.json", `"API_KEY": "[hidden]"`, "The value of API_KEY is in ${file:",
		"The mesh stays")
	if strings.Contains(out, secret) {
		t.Errorf("the output has the secret:\n%s", out)
	}
	if text := strings.Replace(h.read(claudePath), renamed, "", 1); strings.Contains(text, "stdio\", \"--server") || strings.Contains(text, `"type"`) {
		t.Errorf("the file is\n%s", text)
	}
	if text, isError := h.call(h.connect(h.program, "stdio", "--server", "my-notes", "--as", "claude-code"), "list_notes", nil); isError {
		t.Errorf("the renamed entry does not work: %s", text)
	}
	h.write(claudePath, strings.Replace(h.read(claudePath), renamed, "", 1))
	h.check(0, []string{"init", "--undo", "--yes"}, "~/.claude.json: My Notes was removed since init",
		"~/.cursor/mcp.json no longer exists", "1 stored secret(s)")
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
}

// A user has a mesh with a configuration that the user wrote, and `sluice init` extends this configuration. `sluice
// init --undo` restores the original content of the configuration. If a hook also uses the mesh, the undo removes the
// servers, and the hook still works.
func TestInit_UndoKeepsTheMeshOfAPersonAndOfAHook(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	const path = ".config/sluice/sluice.yaml"
	mine := "# mine\nlisten: 127.0.0.1:0\ngrpc: 127.0.0.1:0\ndata: " + h.data() + "\npolicies: [policies]\n"
	h.write(path, mine)
	h.write(".config/sluice/policies/mine.yaml", "{version: 1, default: deny}\n")
	h.check(0, []string{"init", "--yes", "cursor"})
	h.check(0, []string{"init", "--undo", "--yes"}, "Removed: ~/.config/sluice/policies/notes.yaml",
		"Removed from ~/.config/sluice/sluice.yaml: servers.notes, auth.tokens.operator, auth.tokens.cursor.",
		"~/.config/sluice/sluice.yaml has the content that it had before init, byte for byte")
	if h.read(path) != mine {
		t.Errorf("the configuration is\n%s", h.read(path))
	}
	h.check(0, []string{"init", "--yes", "cursor"})
	h.check(0, []string{"hook", "install", "claude-code", "--yes"})
	h.check(0, []string{"init", "--undo", "--yes", "cursor"}, "because hooks use the mesh: claude-code")
	h.check(0, []string{"hook", "status", "claude-code"})
	if text := h.read(path); strings.Contains(text, "stdio:") || !strings.HasPrefix(text, mine) {
		t.Errorf("the configuration is\n%s", text)
	}
	h.check(0, []string{"config", "check"})
	h.check(0, []string{"init", "--undo", "--yes"}, "Claude Code has the hook of Sluice", "is removed")
	h.check(1, []string{"hook", "status", "claude-code"}, "not registered")
}

// Removing a hook changes the file in which `sluice init` records its changes. `sluice init --undo` reads this file
// again after it has removed the hook.
func TestInit_UndoRemovesTheHookAndTheMesh(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes", "cursor"})
	h.check(0, []string{"hook", "install", "claude-code", "--yes"})
	h.check(0, []string{"init", "--undo", "--yes"}, "Claude Code has the hook of Sluice", "Removed: ~/.config/sluice/sluice.yaml")
	if h.read(cursorPath) != cursorFile(h) {
		t.Errorf("the file is\n%s", h.read(cursorPath))
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "Nothing to undo")
}

// A server is already behind the mesh. `init --observe` sets mode: observe for this server, so that the mesh only
// records refusals and does not enforce them. Running the command again changes nothing.
func TestInit_ObserveRefusesNothing(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(0, []string{"init", "--yes", "cursor"})
	command, args := h.entry(cursorPath, "notes")
	if text, isError := h.call(h.connect(command, args...), "no_such_tool", nil); !isError || !strings.Contains(text, "Denied by policy") {
		t.Errorf("an unknown tool returns %s", text)
	}
	enforced := h.read(".config/sluice/sluice.yaml")
	out := h.check(0, []string{"init", "--yes", "--observe", "cursor"}, `+    mode: "observe"`, "the mesh refuses nothing of notes", "report` shows")
	if config := h.read(".config/sluice/sluice.yaml"); strings.Count(config, "mode:") != 1 || !strings.Contains(out, "Until ") {
		t.Errorf("the configuration is\n%s", config)
	}
	if text, isError := h.call(h.connect(command, args...), "delete_note", map[string]any{"id": "note-1"}); isError {
		t.Errorf("an observed call returns %s", text)
	}
	h.check(0, []string{"report"}, "delete_note")
	observed := h.read(".config/sluice/sluice.yaml")
	h.check(0, []string{"init", "--yes", "--observe", "cursor"}, "Nothing to do", "the mesh refuses nothing of notes")
	if h.read(".config/sluice/sluice.yaml") != observed || observed == enforced {
		t.Errorf("a second run changes the configuration:\n%s", h.read(".config/sluice/sluice.yaml"))
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "Removed: ~/.config/sluice/sluice.yaml")
	h.check(0, []string{"init", "--yes", "--observe", "claude-code"}, "the mesh refuses nothing of local, my-notes. Then it enforces")
}

func TestInit_NeedsConsent(t *testing.T) {
	t.Parallel()
	h := newClients(t)
	h.check(1, []string{"init"}, "add --yes")
	h.check(2, []string{"init", "emacs"}, `"emacs" is not a client that init knows`)
	if _, err := os.Stat(h.data()); err == nil || h.read(claudePath) != claudeFile(h) {
		t.Error("something was written")
	}
}
