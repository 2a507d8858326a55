package clientsetup_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientconfig"
	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/configedit"
)

func testSystem(t *testing.T) clientconfig.System {
	t.Helper()
	return clientconfig.System{OS: "linux", Home: t.TempDir(), Getenv: func(string) string { return "" }}
}

func writeBelow(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, content)
}

func meshURL(server string) string { return "https://mesh.example.com/mcp/" + server }

// newProgram creates a file for the program that entries start, and returns its path.
func newProgram(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "sluice")
	write(t, program, "")
	return program
}

func relayArgs(f clientconfig.File, server string) []string {
	return []string{"stdio", "--server", server, "--as", f.Client.ID, "--url", "https://mesh.example.com"}
}

// Each client has an entry with a URL and a token, or with a command if the client does not support URLs. The test
// replaces this entry and adds another entry. Both entries then start `sluice stdio`, and the file no longer contains
// the token.
func TestPlanElsewhere_EntriesOfEachClient(t *testing.T) {
	t.Parallel()
	for _, c := range clientconfig.Clients() {
		t.Run(c.ID, func(t *testing.T) {
			t.Parallel()
			sys, program := testSystem(t), newProgram(t)
			f := c.Files(sys, "")[0]
			empty := map[configedit.Format]string{configedit.JSON: "{}\n"}[f.Layout.Format]
			edit, isHTTP := f.HTTPEdit("notes", nil, meshURL("notes"), []clientconfig.Pair{{Name: "Authorization", Value: "Bearer the-token"}})
			if !isHTTP {
				edit = f.StdioEdit("notes", nil, "npx", []string{"notes"})
			}
			change, err := configedit.Apply(f.Layout, []byte(empty), edit)
			if err != nil {
				t.Fatal(err)
			}
			writeBelow(t, f.Path, string(change.After))
			plan := clientsetup.NewPlanElsewhere(clientsetup.Environment{Home: sys.Home, Getenv: sys.Getenv}, clientsetup.Scan(sys, []clientconfig.Client{c}, ""), []string{"extra", "notes"})
			plan.AddElsewhere([]string{"extra", "notes"}, meshURL)
			changes := plan.Changes(func(f clientconfig.File, server string) (string, []string) {
				s, _ := plan.Server(server)
				return program, relayArgs(f, s.Elsewhere)
			})
			if len(changes) != 1 || len(plan.Left) != 0 {
				t.Fatalf("%d changes, left %+v", len(changes), plan.Left)
			}
			if strings.Contains(string(changes[0].After), "the-token") {
				t.Errorf("the file contains the token:\n%s", changes[0].After)
			}
			entries, err := f.Entries(changes[0].After)
			if err != nil || len(entries) != 2 {
				t.Fatalf("%+v, %v:\n%s", entries, err, changes[0].After)
			}
			clientsetup.Behind{Program: program, Elsewhere: func(url, client string) bool {
				return url == "https://mesh.example.com" && client == c.ID
			}}.Check(f, entries)
			for _, e := range entries {
				if !slices.Equal(e.Args, relayArgs(f, e.Name)) || e.Command != program || !e.Wrapped || e.URL != "" || e.Disabled || e.Reason != "" {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

func TestPlanElsewhere_ReplacesWhatTheMeshHas(t *testing.T) {
	t.Parallel()
	sys, program := testSystem(t), newProgram(t)
	here := filepath.Join(sys.Home, "notes")
	writeBelow(t, filepath.Join(here, "a.md"), "a")
	writeBelow(t, filepath.Join(sys.Home, ".cursor", "mcp.json"), `{"mcpServers": {
		"Notes": {"command": "npx", "args": ["notes"]},
		"wiki": {"url": "https://wiki.example.com/mcp"},
		"other": {"command": "npx", "args": ["other"]},
		"files": {"command": "npx", "args": ["files", "`+here+`"]},
		"flag": {"command": "npx", "args": ["flag", "--root=`+here+`"]},
		"env": {"command": "npx", "args": ["env"], "env": {"DB_PATH": "`+here+`", "HOME": "`+sys.Home+`"}},
		"home": {"command": "npx", "args": ["home"], "env": {"HOME": "`+sys.Home+`", "GONE": "`+here+`/none"}},
		"dir": {"command": "npx", "args": ["dir"], "cwd": "`+here+`"},
		"keyed": {"command": "npx", "args": ["keyed", "--api-key", "sk-123456"]},
		"off": {"command": "npx", "args": ["off"], "disabled": true},
		"almost": {"command": "`+program+`-evil", "args": ["stdio", "--server", "almost", "--as", "cursor"]},
		"done": {"command": "`+program+`", "args": ["stdio", "--server", "done", "--as", "cursor", "--config", "/c/sluice.yaml"]}}}`)
	writeBelow(t, filepath.Join(sys.Home, ".gemini", "settings.json"), `{"mcpServers": {
		"notes": {"command": "npx", "args": ["notes"]},
		"wiki": {"httpUrl": "https://wiki.example.com/other"}}}`)
	cursor, _ := clientconfig.Find("cursor")
	gemini, _ := clientconfig.Find("gemini")
	found := clientsetup.Scan(sys, []clientconfig.Client{cursor, gemini}, "")
	for _, f := range found {
		clientsetup.Behind{Program: program, Config: "/c/sluice.yaml", Servers: func(string) bool { return true }}.Check(f.File, f.Entries)
	}
	names := []string{"almost", "dir", "done", "env", "extra", "files", "flag", "home", "keyed", "notes", "off", "wiki"}
	plan := clientsetup.NewPlanElsewhere(clientsetup.Environment{Home: sys.Home, Getenv: sys.Getenv}, found, names)
	var wraps []string
	for _, w := range plan.Wraps {
		s, _ := plan.Server(w.Server)
		wraps = append(wraps, w.Entry.Name+" is "+s.Elsewhere+" compared as "+s.Name)
	}
	want := []string{"Notes is notes compared as notes", "wiki is wiki compared as wiki", "home is home compared as home", "notes is notes compared as notes", "wiki is wiki compared as wiki-gemini"}
	if !slices.Equal(wraps, want) {
		t.Errorf("%q, want %q", wraps, want)
	}
	reasons := map[string]string{"almost": "not this program", "other": "is not at the mesh", "files": "uses " + here, "flag": "uses " + here, "env": "uses " + here, "dir": "works in " + here, "keyed": "credential"}
	for _, l := range plan.Left {
		if part, ok := reasons[l.Entry.Name]; !ok || !strings.Contains(l.Reason, part) {
			t.Errorf("%s stays, because it %s", l.Entry.Name, l.Reason)
		}
		delete(reasons, l.Entry.Name)
	}
	if len(reasons) > 0 || plan.Wrapped != 1 || plan.Disabled != 1 {
		t.Errorf("not left: %v; %d wrapped, %d disabled", reasons, plan.Wrapped, plan.Disabled)
	}
	if got := clientsetup.EntryNames(found); slices.Contains(got, "done") || slices.Contains(got, "off") || !slices.Contains(got, "notes") {
		t.Errorf("the names are %q", got)
	}
	plan.AddElsewhere(names, meshURL)
	var added []string
	for _, w := range plan.Wraps {
		if w.Added {
			added = append(added, plan.Files[w.File].File.Client.ID+" "+w.Entry.Name)
		}
	}
	if want := []string{"cursor extra", "gemini almost", "gemini dir", "gemini done", "gemini env", "gemini extra", "gemini files", "gemini flag", "gemini home", "gemini keyed", "gemini off"}; !slices.Equal(added, want) {
		t.Errorf("added %q, want %q", added, want)
	}
}
