package clientsetup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// An undoneFile is a test case: a client's file that is changed between `init` and undo.
type undoneFile struct {
	// change returns the new content, or "" to remove the file.
	change func(now string) string
	want   Undone
	// stays contains parts of the file after undo. The field before is true if undo restores the bytes from before
	// `init`.
	stays  []string
	before bool
	// ended is true if undo without force leaves no recorded changes.
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

// After `init`, a client or a person changes the file. Undo without force leaves no recorded changes, unless an entry
// was changed. Undo with force never leaves recorded changes.
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
			undone, err := s.UndoFiles(t.Context(), key, UndoOptions{Force: true})
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
	undone, err := s.UndoFiles(t.Context(), key, UndoOptions{})
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

// wrappedClient runs `init` in a home directory with one client. It returns the state and the path of the client's
// file.
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

// A person replaces an entry that `init` wrote. A second run of `init` changes the new entry. Undo restores the
// person's entry, and returns one result for the file.
func TestUndoFiles_OfTwoChangesOfAFile(t *testing.T) {
	t.Parallel()
	s, key, path := wrappedClient(t)
	const replaced = `{"mcpServers": {"b": {"command": "three"}}}`
	if err := os.WriteFile(path, []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
	setUp(t, filepath.Dir(path), s, key)
	undone, err := s.UndoFiles(t.Context(), key, UndoOptions{})
	if err != nil || len(s.Files) > 0 || len(undone) != 1 || len(undone[0].Kept) > 0 {
		t.Errorf("undo returns %+v, %v", undone, err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != replaced {
		t.Errorf("the file is %s, %v", raw, err)
	}
}

// renamedFile is the file of wrappedClient after a person has renamed the entry b to c.
const renamedFile = `{"mcpServers": {"a": {"command": "one", "args": ["x", "y"], "env": {"LEVEL": "debug"}, "timeout": 5},
	"c": {"command": "/opt/sluice", "args": ["stdio", "--server", "b", "--as", "claude-code"]}}}`

// A heldEntry describes a state of the files in which the entries that `init` wrote are gone but may come back.
type heldEntry struct {
	change func(t *testing.T, path string)
	// held contains the names of entries, with the reasons why they may come back. PATH stands for the client's file,
	// and DIR for the directory of this file.
	held []string
}

func heldEntries() map[string]heldEntry {
	write := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return map[string]heldEntry{
		"an entry is renamed": {change: write(".claude.json", renamedFile), held: []string{"b: c in PATH starts its server"}},
		"a renamed entry has another argument": {
			change: write(".claude.json", strings.Replace(renamedFile, `"stdio"`, `"stdio", "--verbose"`, 1)),
			held:   []string{"b: c in PATH starts its server"},
		},
		"an entry is moved to another client": {
			change: func(t *testing.T, path string) {
				t.Helper()
				write(".claude.json", `{"mcpServers": {}}`)(t, path)
				if err := os.Mkdir(filepath.Join(filepath.Dir(path), ".cursor"), 0o700); err != nil {
					t.Fatal(err)
				}
				write(".cursor/mcp.json", renamedFile)(t, path)
			},
			held: []string{"b: c in DIR/.cursor/mcp.json starts its server"},
		},
		"another file can't be read": {
			change: func(t *testing.T, path string) {
				t.Helper()
				write(".claude.json", `{"mcpServers": {}}`)(t, path)
				if err := os.Mkdir(filepath.Join(filepath.Dir(path), ".cursor"), 0o700); err != nil {
					t.Fatal(err)
				}
				write(".cursor/mcp.json", `{"x": "sluice stdio --server b`)(t, path)
			},
			held: []string{"b: an entry in DIR/.cursor/mcp.json may start its server, but this file can't be read"},
		},
		"the target of the link is gone": {
			change: func(t *testing.T, path string) {
				t.Helper()
				if err := errors.Join(os.Remove(path), os.Symlink("elsewhere.json", path)); err != nil {
					t.Fatal(err)
				}
			},
			held: []string{"a: the file is a link, and its target does not exist now", "b: the file is a link, and its target does not exist now"},
		},
		"the directory is gone": {
			change: func(t *testing.T, path string) {
				t.Helper()
				if err := os.RemoveAll(filepath.Dir(path)); err != nil {
					t.Fatal(err)
				}
			},
			held: []string{"a: the folder DIR does not exist now", "b: the folder DIR does not exist now"},
		},
	}
}

// The entries that `init` wrote are gone, but they may only have been renamed or moved. Therefore undo keeps their
// record, unless it is forced.
func TestUndoFiles_KeepsTheRecordOfAnEntryThatMayReturn(t *testing.T) {
	t.Parallel()
	for name, c := range heldEntries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key, path := wrappedClient(t)
			c.change(t, path)
			dir := filepath.Dir(path)
			scanned := s.Scan(clientconfig.System{OS: "linux", Home: dir, Getenv: func(string) string { return "" }}, "")
			for range 2 {
				undone, err := s.UndoFiles(t.Context(), key, UndoOptions{Scanned: scanned})
				if err != nil || len(undone) != 1 || len(s.Files) != 1 {
					t.Fatalf("undo returns %+v, %v, and %d changes stay", undone, err, len(s.Files))
				}
				var held []string
				for _, k := range undone[0].Held {
					held = append(held, strings.NewReplacer(path, "PATH", dir, "DIR").Replace(k.Name+": "+k.Reason))
					if want := map[string]string{"a": "one", "b": "two"}[k.Name]; k.Entry.Command != want || k.Server != k.Name {
						t.Errorf("%s was %+v of the server %q before init", k.Name, k.Entry, k.Server)
					}
				}
				if diff := cmp.Diff(c.held, held); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
			if undone, err := s.UndoFiles(t.Context(), key, UndoOptions{Force: true, Scanned: scanned}); err != nil || len(s.Files) > 0 {
				t.Errorf("with force, undo returns %+v, %v", undone, err)
			}
		})
	}
}

// A person removes an entry of one client. The entry of another client, which `init` also wrote, starts the same
// server. That entry can't be the removed entry under a new name, because it has a record of its own. Therefore undo
// does not keep the record of the removed entry.
func TestUndoFiles_EndsIfOnlyARecordedEntryStartsTheServer(t *testing.T) {
	t.Parallel()
	s, key, path := wrappedClient(t)
	other := filepath.Join(filepath.Dir(path), ".cursor", "mcp.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.Rename(path, other)); err != nil {
		t.Fatal(err)
	}
	first := s.Files[0]
	first.Path = other
	s.Files = append(s.Files, resealed(t, first, key, path))
	if err := os.WriteFile(path, []byte(`{"mcpServers": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	scanned := s.Scan(clientconfig.System{OS: "linux", Home: filepath.Dir(path), Getenv: func(string) string { return "" }}, "")
	undone, err := s.UndoFiles(t.Context(), key, UndoOptions{Scanned: scanned})
	if err != nil || len(s.Files) > 0 || len(undone) != 2 || len(undone[1].Gone) != 2 {
		t.Errorf("undo returns %+v, %v", undone, err)
	}
}

// resealed returns a copy of the given change. The original entries in it were encrypted for the file at the given
// path, and are now encrypted for the file in change.Path.
func resealed(t *testing.T, change FileChange, key []byte, path string) FileChange {
	t.Helper()
	m := *change.Manifest
	var err error
	if m.Old, err = secretstore.OpenSealed(key, m.Old, path); err == nil {
		m.Old, err = secretstore.Seal(key, m.Old, change.Path)
	}
	if err != nil {
		t.Fatal(err)
	}
	change.Manifest = &m
	return change
}

// The client's file was a link into a directory of settings. A person removes the link temporarily. Undo keeps the
// record of the file.
func TestUndoFiles_KeepsTheRecordOfALinkedFile(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	path, target, key := filepath.Join(home, ".claude.json"), filepath.Join(t.TempDir(), "claude.json"), make([]byte, 32)
	s, err := LoadState(t.TempDir())
	if err := errors.Join(err, os.WriteFile(target, []byte(rewrittenFile), 0o600), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
	s.settle = time.Millisecond
	setUp(t, home, s, key)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if undone, err := s.UndoFiles(t.Context(), key, UndoOptions{}); err != nil || len(s.Files) != 1 || len(undone[0].Held) != 2 {
		t.Errorf("undo returns %+v, %v", undone, err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if undone, err := s.UndoFiles(t.Context(), key, UndoOptions{}); err != nil || len(s.Files) > 0 || !undone[0].Exact {
		t.Errorf("with the link, undo returns %+v, %v", undone, err)
	}
}

// When undo reads the file, the client has just truncated or removed the file in order to write it. Undo waits, notices
// that the client has now written the file, and returns an error for it. The change stays recorded.
func TestUndoFiles_WaitsForAClientThatWritesItsFile(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.WriteFile(path, []byte("{}"), 0o600) },
		"removed":   os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, key, path := wrappedClient(t)
			wrapped, err := os.ReadFile(path)
			if err := errors.Join(err, begin(path)); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				s.settle = settle
				written := make(chan error, 1)
				go func() {
					time.Sleep(time.Millisecond) // undo has read the file, because it waits
					written <- os.WriteFile(path, wrapped, 0o600)
				}()
				undone, err := s.UndoFiles(t.Context(), key, UndoOptions{})
				if err != nil || len(s.Files) != 1 || !errors.Is(undone[0].Err, atomicfile.ErrChanged) {
					t.Errorf("undo returns %+v, %v", undone, err)
				}
				if err := <-written; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
