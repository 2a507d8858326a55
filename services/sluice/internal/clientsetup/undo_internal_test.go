package clientsetup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// An undoneFile is a client's file that is changed between init and undo.
type undoneFile struct {
	// change returns the new content, or "" to remove the file.
	change func(now string) string
	want   Undone
	// stays are parts of the file after undo. before is true if undo restores the bytes from before init.
	stays  []string
	before bool
	// ended is true if undo ends without force.
	ended bool
}

func undoneFiles() map[string]undoneFile {
	replaced := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	const ours = `"command": "/opt/sluice"`
	return map[string]undoneFile{
		"nothing": {change: replaced(), want: Undone{Exact: true}, before: true, ended: true},
		"an entry is removed": {
			change: func(now string) string {
				before, _, _ := strings.Cut(now, ",\n    \"b\"")
				return before + "}}"
			},
			want: Undone{Gone: []string{"b"}}, stays: []string{`"command": "one"`}, ended: true,
		},
		"all entries are removed": {change: func(string) string { return "{}" }, want: Undone{Gone: []string{"b", "a"}}, stays: []string{"{}"}, ended: true},
		"the file is removed":     {change: func(string) string { return "" }, want: Undone{Missing: true}, ended: true},
		"the client has saved the file": {
			change: func(string) string {
				return `{"mcpServers": {"b": {"args": ["stdio", "--server", "b", "--as", "claude-code"], "command": "/opt/sluice", "type": "stdio", "env": {}},
				"a": {"type": "stdio", "timeout": 7, "command": "/opt/sluice", "args": ["stdio", "--server", "a", "--as", "claude-code"], "disabled": true}}}`
			},
			stays: []string{`"timeout": 7`, `"disabled": true`, `"command": "one", "args": ["x", "y"]`, `"b": {"command": "two"}`}, ended: true,
		},
		"an entry is changed": {
			change: replaced(`"b", "--as", "claude-code"]`, `"b", "--as", "claude-code", "--verbose"]`),
			want:   Undone{Kept: []Kept{{Name: "b", Reason: "it was changed", Server: "b", Source: `{"command": "two"}`}}},
			stays:  []string{ours, `"command": "one"`},
		},
	}
}

// After init, a client or a person changes the file. Undo ends unless an entry was changed. With force, it always ends.
func TestUndoFiles_EndsUnlessAnEntryWasChanged(t *testing.T) {
	t.Parallel()
	for name, c := range undoneFiles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key, path := wrappedClient(t)
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if now := c.change(string(raw)); now != "" {
				err = os.WriteFile(path, []byte(now), 0o600)
			} else {
				err = os.Remove(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.want.Client, c.want.Path = "claude-code", path
			c.check(t, s, key)
			undone, err := s.UndoFiles(t.Context(), key, nil, true)
			if err != nil || len(s.Files) > 0 {
				t.Errorf("with force, undo returns %+v, %v", undone, err)
			}
			if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), "/opt/sluice") {
				t.Errorf("after undo with force, the file is\n%s", raw)
			}
		})
	}
}

func (c undoneFile) check(t *testing.T, s *State, key []byte) {
	t.Helper()
	undone, err := s.UndoFiles(t.Context(), key, nil, false)
	if err != nil || len(undone) != 1 || len(s.Files) == 0 != c.ended {
		t.Fatalf("undo returns %+v, %v, and %d changes stay", undone, err, len(s.Files))
	}
	for i := range undone[0].Kept {
		if undone[0].Kept[i].Entry.Command != "two" {
			t.Errorf("the entry before init is %+v", undone[0].Kept[i].Entry)
		}
		undone[0].Kept[i].Entry = c.want.Kept[i].Entry // it has private fields
	}
	if diff := cmp.Diff(c.want, undone[0], cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Entry" }, cmp.Ignore())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	raw, _ := os.ReadFile(c.want.Path) // it may not exist
	for _, want := range c.stays {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the file has no %s:\n%s", want, raw)
		}
	}
	if c.before && string(raw) != rewrittenFile {
		t.Errorf("the file is not as before:\n%s", raw)
	}
}

// wrappedClient runs init for a home with one client, and returns the state and the path of the client's file.
func wrappedClient(t *testing.T) (s *State, key []byte, path string) {
	t.Helper()
	home := t.TempDir()
	path, key = filepath.Join(home, ".claude.json"), make([]byte, 32)
	if err := os.WriteFile(path, []byte(rewrittenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := LoadState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.settle = time.Millisecond
	setUp(t, home, s, key)
	return s, key, path
}

// A person replaces an entry of init, and init wraps the new entry. Undo restores the entry of the person, and returns
// one result for the file.
func TestUndoFiles_OfTwoChangesOfAFile(t *testing.T) {
	t.Parallel()
	s, key, path := wrappedClient(t)
	const replaced = `{"mcpServers": {"b": {"command": "three"}}}`
	if err := os.WriteFile(path, []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	setUp(t, filepath.Dir(path), s, key)
	undone, err := s.UndoFiles(t.Context(), key, nil, false)
	if err != nil || len(s.Files) > 0 || len(undone) != 1 || len(undone[0].Kept) > 0 {
		t.Errorf("undo returns %+v, %v", undone, err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != replaced {
		t.Errorf("the file is %s, %v", raw, err)
	}
}
