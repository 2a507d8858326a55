package clientsetup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
)

// A rewriter is a client that counts its starts in the same file that contains its servers, as Claude Code does.
type rewriter struct {
	path    string
	inPlace bool
	// starts is the last number that the client wrote.
	starts int
}

// A rewritten is the content of the client's file.
type rewritten struct {
	NumStartups int                       `json:"numStartups"`
	MCPServers  map[string]map[string]any `json:"mcpServers"`
}

// start reads the file, increments the counter, and writes the file. If the client writes in place while `init`
// exchanges the file, the client writes to the old file. In that case, its change is missing until `init` has compared
// the old file and restored it. Therefore start first waits until the file contains the last number that start wrote.
func (c *rewriter) start() error {
	last := fmt.Appendf(nil, `"numStartups": %d,`, c.starts)
	var data []byte
	for deadline := time.Now().Add(10 * time.Second); !bytes.Contains(data, last); {
		var err error
		if data, err = os.ReadFile(c.path); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the last start, %d, is missing in %s", c.starts, data)
		}
	}
	c.starts++
	after := bytes.Replace(data, last, fmt.Appendf(nil, `"numStartups": %d,`, c.starts), 1)
	if c.inPlace {
		return os.WriteFile(c.path, after, 0o600)
	}
	temp := c.path + ".theirs"
	return errors.Join(os.WriteFile(temp, after, 0o600), os.Rename(temp, c.path))
}

// setUp changes the entries of the client in a home directory, as `init` does. It reports whether all entries already
// went through the mesh.
func setUp(t *testing.T, home string, s *State, key []byte) bool {
	t.Helper()
	client, _ := clientconfig.Find("claude-code")
	environment := Environment{Home: home, Getenv: func(string) string { return "" }}
	found := Scan(clientconfig.System{OS: "linux", Home: home, Getenv: environment.Getenv}, []clientconfig.Client{client}, "")
	for _, f := range found {
		for i := range f.Entries {
			f.Entries[i].Wrapped = f.Entries[i].Relay != nil
		}
	}
	plan := NewPlan(environment, found, nil)
	changes := plan.Changes(func(_ clientconfig.File, server string) (string, []string) {
		return program, clientconfig.Relay{Server: server, As: "claude-code"}.Args()
	})
	for _, change := range changes {
		if err := change.Write(t.Context(), s, key); err != nil && !errors.Is(err, atomicfile.ErrChanged) {
			t.Fatal(err)
		}
	}
	return plan.Wrapped == len(servers)
}

const program = "/opt/sluice"

// servers contains the entries of the client before `init`. The variable wrapped contains the same entries after `init`
// has changed them.
var (
	servers = map[string]map[string]any{
		"a": {"command": "one", "args": []any{"x", "y"}, "env": map[string]any{"LEVEL": "debug"}, "timeout": 5.0},
		"b": {"command": "two"},
	}
	wrapped = map[string]map[string]any{
		"a": {"command": program, "args": []any{"stdio", "--server", "a", "--as", "claude-code"}, "timeout": 5.0},
		"b": {"command": program, "args": []any{"stdio", "--server", "b", "--as", "claude-code"}},
	}
)

const rewrittenFile = `{
  "numStartups": 0,
  "mcpServers": {
    "a": {"command": "one", "args": ["x", "y"], "env": {"LEVEL": "debug"}, "timeout": 5},
    "b": {"command": "two"}
  }
}
`

// rewrites returns the value of SLUICE_REWRITES, or 1000 if the variable is not set.
func rewrites(t *testing.T) int {
	t.Helper()
	text, ok := os.LookupEnv("SLUICE_REWRITES")
	if !ok {
		return 1000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A client rewrites its file many times while `init` changes the same file. The client either renames another file or
// writes in place. Afterwards, each entry has either its original form or the form that `init` writes, and the file
// contains the last number of starts. Then `init` completes, and undo restores the entries.
func TestWrite_LosesNothingOfAClientThatRewritesItsFile(t *testing.T) {
	t.Parallel()
	for way, inPlace := range map[string]bool{"by rename": false, "in place": true} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			home, data := t.TempDir(), t.TempDir()
			during := 0
			for range rewrites(t) / 2 {
				c := &rewriter{path: filepath.Join(home, ".claude.json"), inPlace: inPlace}
				if rewriteDuring(t, c, home, data) {
					during++
				}
			}
			t.Logf("init completed in %d rounds while the client wrote", during)
		})
	}
}

// rewriteDuring starts the client several times while `init` runs. It reports whether `init` changed all entries during
// this time.
func rewriteDuring(t *testing.T, c *rewriter, home, data string) (during bool) {
	t.Helper()
	if err := os.WriteFile(c.path, []byte(rewrittenFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := LoadState(data)
	if err != nil {
		t.Fatal(err)
	}
	s.settle = 2 * time.Millisecond
	key := make([]byte, 32)
	done := make(chan error, 1)
	go func() { done <- errors.Join(c.start(), c.start(), c.start()) }()
	setUp(t, home, s, key)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	now := c.check(t)
	for name, entry := range now.MCPServers {
		if !cmp.Equal(entry, servers[name]) && !cmp.Equal(entry, wrapped[name]) {
			t.Fatalf("the entry %s is %v", name, entry)
		}
	}
	during = cmp.Equal(now.MCPServers, wrapped)
	for range 3 { // the second run wraps what the client has restored, and the last one finds nothing to do
		if setUp(t, home, s, key) {
			break
		}
	}
	if diff := cmp.Diff(wrapped, c.check(t).MCPServers); diff != "" {
		t.Fatal(diff)
	}
	undone, err := s.UndoFiles(t.Context(), key, UndoOptions{})
	if err != nil || len(s.Files) > 0 {
		t.Fatalf("undo: %v, %+v", err, undone)
	}
	if diff := cmp.Diff(servers, c.check(t).MCPServers); diff != "" {
		t.Fatal(diff)
	}
	return during
}

// check reads the file, which must contain the last number of starts.
func (c *rewriter) check(t *testing.T) (now rewritten) {
	t.Helper()
	raw, err := os.ReadFile(c.path)
	if err == nil {
		err = json.Unmarshal(raw, &now)
	}
	if err != nil || now.NumStartups != c.starts || len(now.MCPServers) != len(servers) {
		t.Fatalf("%v: %d starts are lost in\n%s", err, c.starts-now.NumStartups, raw)
	}
	entries, err := os.ReadDir(filepath.Dir(c.path))
	if err != nil || len(entries) != 1 {
		t.Fatalf("the directory has the entries %v (%v)", entries, err)
	}
	return now
}
