package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

// found returns the entries in the user's file of the given client.
func found(t *testing.T, client, content string) clientsetup.Found {
	t.Helper()
	c, ok := clientconfig.Find(client)
	if !ok {
		t.Fatal(client)
	}
	f := c.Files(clientconfig.System{OS: "linux", Home: "/home/u", Getenv: func(string) string { return "" }}, "")[0]
	entries, err := f.Entries([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return clientsetup.Found{File: f, Data: []byte(content), Entries: entries}
}

func TestSharedProblem_NamesTheProgramThatClientsStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, link, other := filepath.Join(dir, "self"), filepath.Join(dir, "link"), filepath.Join(dir, "other")
	for _, path := range []string{self, other} {
		if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		self: "", link: "", other: "`sluice` in your PATH is " + other + ", and not this program",
		"": "`sluice` is not in your PATH, so the client can't start these entries",
	} {
		look := func(string) (string, error) {
			if path == "" {
				return "", errors.New("not found")
			}
			return path, nil
		}
		if got := sharedProblem(look, self); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
			t.Errorf("%q in PATH: %q, want %q", path, got, want)
		}
	}
}

func TestTimeoutNote_WarnsIfTheClientGivesUpBeforeTheHold(t *testing.T) {
	t.Parallel()
	const hold = 45 * time.Second
	for _, tt := range []struct {
		client, member string
		hold           time.Duration
		want           string
	}{
		{"claude-code", "", hold, ""},
		{"claude-code", `, "timeout": 60000`, hold, ""},
		{"claude-code", `, "timeout": 30000`, hold, "Claude Code gives up on calls of a after 30s, but a call that needs approval waits for 45s: set timeout = 60000 in the entry."},
		{"claude-code", `, "timeout": 30000`, 0, ""},
		{"claude-desktop", "", hold, ""},
		{"claude-desktop", "", 2 * time.Minute, "Claude Desktop gives up on calls of a after 1m0s, but a call that needs approval waits for 2m0s: set a shorter approvals.hold in the mesh's configuration."},
		{"cursor", "", hold, ""},
	} {
		f := found(t, tt.client, `{"mcpServers": {"a": {"command": "x"`+tt.member+`}}}`)
		if got := timeoutNote(f.File.Client, f.Entries[0], tt.hold); got != tt.want {
			t.Errorf("%s%s with a hold of %v: %q, want %q", tt.client, tt.member, tt.hold, got, tt.want)
		}
	}
	for member, warns := range map[string]bool{"": false, `, "timeout": 20000`: false, `, "timeout": 5000`: true} { // progress extends its time-out
		f := found(t, "opencode", `{"mcp": {"a": {"type": "local", "command": ["x"]`+member+`}}}`)
		if got := timeoutNote(f.File.Client, f.Entries[0], hold); (got != "") != warns {
			t.Errorf("opencode%s: %q", member, got)
		}
	}
}

func TestUsersOfServers_NamesEachClientOnce(t *testing.T) {
	t.Parallel()
	entry := func(name, server string) string {
		return `"` + name + `": {"command": "/opt/sluice", "args": ["stdio", "--server", "` + server + `", "--as", "x"]}`
	}
	users := usersOfServers([]clientsetup.Found{
		found(t, "claude-code", `{"mcpServers": {`+entry("a", "notes")+`, `+entry("b", "notes")+`, "c": {"command": "x", "args": ["--server", "notes"]}}}`),
		found(t, "cursor", `{"mcpServers": {`+entry("a", "notes")+`, `+entry("m", "memory-cursor")+`}}`),
		found(t, "cline", `{"mcpServers": {"a": {"command": "/opt/sluice", "args": ["stdio", "--server"]}}}`),
	})
	for server, want := range map[string]string{"notes": "Claude Code and Cursor", "memory-cursor": "Cursor", "": ""} {
		if got := enumerated(users[server]); got != want {
			t.Errorf("%s is used by %q, want %q", server, got, want)
		}
	}
	if got := enumerated([]string{"a", "b", "c"}); got != "a, b and c" {
		t.Errorf("three names: %q", got)
	}
}

// Two clients have different servers with the same name, and an entry uses values of environment variables. `init`
// prints a note about each of these facts.
func TestNotes_NameRenamedServersAndVariables(t *testing.T) {
	t.Parallel()
	files := []clientsetup.Found{
		found(t, "claude-code", `{"mcpServers": {"memory": {"command": "x"}}}`),
		found(t, "cursor", `{"mcpServers": {"memory": {"command": "y", "env": {"LEVEL": "${env:LEVEL}"}}}}`),
	}
	plan := clientsetup.NewPlan(clientsetup.Environment{Getenv: func(string) string { return "set" }}, files, nil)
	s := &setup{plan: plan}
	names := strings.Join(s.nameNotes(), "\n")
	if want := "memory-cursor is the name of memory of Cursor in policies and records, because another server has the name memory."; names != want {
		t.Errorf("names: %q, want %q", names, want)
	}
	variables := strings.Join(s.variableNotes(), "\n")
	if want := "memory of Cursor keeps the values that these variables have now: LEVEL."; !strings.HasPrefix(variables, want) {
		t.Errorf("variables: %q, want %q", variables, want)
	}
}
