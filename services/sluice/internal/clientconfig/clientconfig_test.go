package clientconfig_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

var update = flag.Bool("update", false, "write the golden files")

func systems() map[string]clientconfig.System {
	return map[string]clientconfig.System{
		"linux":   {OS: "linux", Home: "/home/eve", Getenv: func(string) string { return "" }},
		"darwin":  {OS: "darwin", Home: "/Users/eve", Getenv: func(string) string { return "" }},
		"windows": {OS: "windows", Home: `C:\Users\eve`, Getenv: func(string) string { return "" }},
	}
}

// input returns the file of a client on a system. The files have comments if the format allows comments. On darwin, the
// file has no final line break. On windows, lines end with CR LF, and the file has a byte order mark.
func input(t *testing.T, c clientconfig.Client, system string) (data []byte, ext string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join("testdata", c.ID+".*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s has the files %v: %v", c.ID, found, err)
	}
	if data, err = os.ReadFile(found[0]); err != nil {
		t.Fatal(err)
	}
	switch system {
	case "darwin":
		data = bytes.TrimRight(data, "\n")
	case "windows":
		data = append([]byte("\ufeff"), bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n"))...)
	}
	return data, filepath.Ext(found[0])
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestClients_Golden compares golden files for each client and system. A golden file contains the paths of the client's
// files, the entries in a file, and the content of the file after the test has wrapped all possible entries (made them
// start `sluice stdio`) and added an entry. Undo must restore the file.
func TestClients_Golden(t *testing.T) {
	t.Parallel()
	for _, c := range clientconfig.Clients() {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			for system, sys := range systems() {
				data, ext := input(t, c, system)
				project := "/work/p"
				if system == "windows" {
					project = `D:\p`
				}
				var report struct {
					Files   []string
					Entries []clientconfig.Entry
				}
				files := c.Files(sys, project)
				for _, f := range files {
					report.Files = append(report.Files, f.Scope.String()+" "+f.Path)
				}
				var err error
				if report.Entries, err = files[0].Entries(data); err != nil {
					t.Fatal(err)
				}
				text, err := json.MarshalIndent(report, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				golden(t, c.ID+"."+system+".entries.json", append(text, '\n'))
				golden(t, c.ID+"."+system+ext, wrapAll(t, files[0], report.Entries, data))
			}
		})
	}
}

// wrapAll wraps all entries for which this is possible, so that they start `sluice stdio`, and adds one entry for each
// transport.
func wrapAll(t *testing.T, f clientconfig.File, entries []clientconfig.Entry, data []byte) []byte {
	t.Helper()
	command := map[bool]string{false: "/opt/sluice", true: `C:\sluice.exe`}[strings.Contains(f.Path, `\`)]
	var edits []configedit.Edit
	for _, e := range entries {
		if e.Reason == "" {
			edits = append(edits, f.StdioEdit(e.Name, &e, command, []string{"stdio", "--server", e.Name, "--as", f.Client.ID}))
		}
	}
	edits = append(edits, f.StdioEdit("added", nil, command, []string{"stdio", "--server", "added"}))
	if e, ok := f.HTTPEdit("remote", nil, "https://mesh.example/mcp", []clientconfig.Pair{{Name: "Authorization", Value: "Bearer x"}}); ok {
		edits = append(edits, e)
	}
	change, err := configedit.Apply(f.Layout, data, edits...)
	if err != nil {
		t.Fatalf("%s: %v", f.Client.ID, err)
	}
	m, err := change.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if undone, err := m.Undo(change.After); err != nil || !bytes.Equal(undone.Data, data) {
		t.Errorf("%s: undo does not restore the file: %v", f.Client.ID, err)
	}
	checkWrapped(t, f, entries, change.After)
	return change.After
}

// checkWrapped reads the file again. It checks that all entries for which this is possible now start `sluice stdio`,
// and that all other entries are unchanged.
func checkWrapped(t *testing.T, f clientconfig.File, before []clientconfig.Entry, data []byte) {
	t.Helper()
	after, err := f.Entries(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range before {
		at := slices.IndexFunc(after, func(a clientconfig.Entry) bool { return slices.Equal(a.Path, e.Path) })
		switch {
		case at < 0:
			t.Errorf("%s: %s is missing", f.Client.ID, e.Name)
		case e.Reason == "" && (after[at].Relay == nil || after[at].Disabled != e.Disabled):
			t.Errorf("%s: %s is not wrapped: %+v", f.Client.ID, e.Name, after[at])
		case e.Reason != "":
			if diff := cmp.Diff(e, after[at], cmpopts.IgnoreUnexported(e)); diff != "" {
				t.Errorf("%s: %s was changed:\n%s", f.Client.ID, e.Name, diff)
			}
		}
	}
	if last := len(before); len(after) < last+1 {
		t.Errorf("%s: no entry was added", f.Client.ID)
	}
}

func TestFiles_FollowEnvironmentVariables(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"XDG_CONFIG_HOME": "/x", "CODEX_HOME": "/codex", "CLAUDE_CONFIG_DIR": "/claude", "COPILOT_HOME": "relative",
		"CLINE_DATA_DIR": "/cline",
	}
	sys := clientconfig.System{OS: "linux", Home: "/home/eve", Getenv: func(name string) string { return env[name] }}
	want := map[string]string{
		"vscode": "/x/Code/User/mcp.json", "codex": "/codex/config.toml", "claude-code": "/claude/.claude.json",
		"copilot": "/home/eve/.copilot/mcp-config.json", "cline": "/cline/settings/cline_mcp_settings.json",
		"goose": "/x/goose/config.yaml",
	}
	for id, path := range want {
		c, ok := clientconfig.Find(id)
		if !ok || c.Files(sys, "")[0].Path != path {
			t.Errorf("%s: %v", id, c.Files(sys, ""))
		}
	}
	sys = clientconfig.System{OS: "windows", Home: `C:\Users\eve`, Getenv: func(name string) string {
		return map[string]string{"APPDATA": `D:\Roaming`}[name]
	}}
	c, _ := clientconfig.Find("zed")
	if got := c.Files(sys, "")[0].Path; got != `D:\Roaming\Zed\settings.json` {
		t.Error(got)
	}
	if _, ok := clientconfig.Find("unknown"); ok {
		t.Error("an unknown client was found")
	}
}
