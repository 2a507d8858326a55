package npx_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
)

// put writes the given files to a directory. If the content of a file begins with "-> ", put creates a link instead.
// All files are executable.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
		var err error
		if to, isLink := strings.CutPrefix(text, "-> "); isLink {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// packed returns the files of a project after npm has installed a package in it.
func packed(manifest string, links ...string) map[string]string {
	files := map[string]string{
		"package.json": `{"dependencies":{"@acme/server":"1"}}`, "node_modules/@acme/server/package.json": manifest, "node_modules/@acme/server/cli.js": "#!/bin/sh\n",
	}
	for _, name := range links {
		files["node_modules/.bin/"+name] = "-> ../@acme/server/cli.js"
	}
	return files
}

func commit(t *testing.T, f npx.Folder, program string, files map[string]string) (*npx.Installed, error) {
	t.Helper()
	a, err := f.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
	}()
	put(t, a.Project(), files)
	put(t, a.Home(), map[string]string{".cache/x": ""})
	return a.Commit(&npx.Command{Package: "@acme/server@1.0.0", Program: program}, "d1")
}

func TestCommit_ChoosesTheProgramAsNpxDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		program, want string
		files         map[string]string
	}{
		"the only one":        {"", "other", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"other":"cli.js"}}`, "other")},
		"a text":              {"", "server", packed(`{"name":"@acme/server","version":"1.0.0","bin":"cli.js"}`, "server")},
		"two names of one":    {"", "a", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"b":"cli.js","a":"cli.js"}}`, "a", "b")},
		"called as it is":     {"", "server", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"a":"a.js","server":"cli.js"}}`, "a", "server")},
		"a folder":            {"", "x", mixed(packed(`{"name":"@acme/server","version":"1.0.0","directories":{"bin":"bin"}}`, "x"), "node_modules/@acme/server/bin/x")},
		"a named one":         {"a", "a", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"a":"a.js","server":"cli.js"}}`, "a", "server")},
		"of another package":  {"b", "b", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"a":"a.js"}}`, "a", "b")},
		"its name twice":      {"", "server", packed(`{"name":"@acme/server","name":"@acme/server","version":"1.0.0","bin":"cli.js"}`, "server")},
		"one that PATH knows": {"sh", "", packed(`{"name":"@acme/server","version":"1.0.0","bin":{"a":"a.js"}}`, "a")},
	} {
		f := npx.Folder(filepath.Join(t.TempDir(), "one"))
		got, err := commit(t, f, c.program, c.files)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := filepath.Join(got.Bin(), c.want)
		if c.want == "" {
			want = c.program
		}
		if got.Program != want || got.Version != "1.0.0" || !exists(got) {
			t.Errorf("%s: %+v", name, got)
		}
		if newest := f.Latest("d1"); newest == nil || *newest != *got {
			t.Errorf("%s: the newest is %+v", name, newest)
		}
		if entries, _ := filepath.Glob(filepath.Join(string(f), "*", "*")); len(entries) != 2 {
			t.Errorf("%s: it holds %s", name, entries)
		}
		if f.Latest("d2") != nil || f.Latest("d") != nil {
			t.Error("it is found for another digest")
		}
	}
}

func exists(one *npx.Installed) bool {
	_, err := os.Stat(filepath.Join(one.Dir, "program.json"))
	return err == nil
}

func mixed(files map[string]string, more ...string) map[string]string {
	for _, name := range more {
		files[name] = ""
	}
	return files
}

// Case X21. An install script has replaced files with links. Commit must not follow a link out of the directory.
func TestCommit_RefusesProgramsOutsideOfTheProject(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	put(t, outside, map[string]string{"package.json": `{"name":"@acme/server","dependencies":{"@acme/server":"1"},"bin":"cli.js"}`, "cli.js": "#!/bin/sh\n"})
	good := `{"name":"@acme/server","version":"1.0.0","bin":"cli.js"}`
	with := func(files map[string]string, name, text string) map[string]string {
		files[name] = text
		return files
	}
	for name, files := range map[string]map[string]string{
		"a program elsewhere":           with(packed(good), "node_modules/.bin/server", "-> "+outside+"/cli.js"),
		"a program by the way up":       with(packed(good), "node_modules/.bin/server", "-> ../../../../../../../../../../bin/sh"),
		"a file behind a link":          with(packed(good, "server"), "node_modules/@acme/server/cli.js", "-> "+outside+"/cli.js"),
		"a manifest elsewhere":          with(packed(good, "server"), "package.json", "-> "+outside+"/package.json"),
		"a package elsewhere":           {"package.json": `{"dependencies":{"x":"1"}}`, "node_modules/x": "-> " + outside},
		"a name with a way":             {"package.json": `{"dependencies":{"../../../x":"1"}}`},
		"a program with a way":          with(packed(`{"name":"@acme/server","bin":{"../../../sh":"cli.js"}}`), "x", ""),
		"a folder in place of it":       with(packed(good), "node_modules/.bin/server/x", ""),
		"no manifest":                   {"package.json": `{"dependencies":{"@acme/server":"1"}}`},
		"no JSON":                       packed(`{"name":`),
		"nothing installed":             {},
		"two packages":                  {"package.json": `{"dependencies":{"a":"1","b":"1"}}`},
		"no program":                    packed(`{"name":"@acme/server"}`),
		"several, none called as it is": packed(`{"name":"@acme/server","bin":{"a":"a.js","b":"b.js"}}`, "a", "b"),
		"a link that is broken":         with(packed(good), "node_modules/.bin/server", "-> nowhere"),
	} {
		f := npx.Folder(filepath.Join(t.TempDir(), "one"))
		got, err := commit(t, f, "", files)
		if err == nil {
			t.Errorf("%s: it runs %s", name, got.Program)
		}
		if f.Latest("d1") != nil {
			t.Errorf("%s: it is used", name)
		}
		if entries, _ := os.ReadDir(string(f)); len(entries) != 0 {
			t.Errorf("%s: left: %s", name, entries)
		}
	}
}

// Case X21. An install script has replaced the project with a link, and has forged a file that marks an installation as
// complete. The installation is not used.
func TestCommit_RefusesReplacedFolders(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	put(t, outside, packed(`{"name":"@acme/server","bin":"cli.js"}`, "server"))
	f := npx.Folder(filepath.Join(t.TempDir(), "one"))
	a, err := f.Begin()
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(map[string]string{"program": "../../../../bin/sh"})
	put(t, a.Work(), map[string]string{"program.json": string(raw)})
	if err := os.RemoveAll(a.Project()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, a.Project()); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Commit(&npx.Command{Package: "@acme/server"}, "d1"); err == nil {
		t.Errorf("it runs %s", got.Program)
	}
	if f.Latest("d1") != nil {
		t.Error("the installation is used")
	}
	if err := a.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "package.json")); err != nil {
		t.Errorf("the target of the link was removed: %v", err)
	}
}

func TestSweep_RemovesOnlyUnusedInstallations(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	one := npx.Folder(filepath.Join(root, "one"))
	files := packed(`{"name":"@acme/server","bin":"cli.js"}`, "server")
	older, err := commit(t, one, "", files)
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(older.Dir, "program.json"), past, past); err != nil {
		t.Fatal(err)
	}
	newest, err := commit(t, one, "", files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := one.Begin(); err != nil { // simulates an interrupted attempt
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "gone", "d1.x"), map[string]string{"program/node_modules/x": ""}) // a project without a record
	sweep := func(in map[string]string, after time.Duration) {
		t.Helper()
		if err := npx.Sweep(root, in, time.Now().Add(after)); err != nil {
			t.Error(err)
		}
	}
	sweep(map[string]string{"one": "d1"}, 100*npx.Grace)
	if entries, _ := os.ReadDir(root); len(entries) != 1 || !exists(newest) || exists(older) {
		t.Errorf("left: %s, the newest exists: %v, the older one: %v", entries, exists(newest), exists(older))
	}
	if entries, _ := os.ReadDir(string(one)); len(entries) != 1 {
		t.Errorf("left: %s", entries)
	}
	for range 2 { // marks the installation as unused, and uses it again
		sweep(map[string]string{"one": "d2"}, 0)
		sweep(map[string]string{}, npx.Grace-time.Hour)
		sweep(map[string]string{"one": "d1"}, 2*npx.Grace)
		if !exists(newest) {
			t.Fatal("an installation that is used again is removed")
		}
	}
	sweep(nil, 0)
	sweep(nil, npx.Grace+time.Hour)
	if entries, _ := os.ReadDir(root); len(entries) != 0 {
		t.Errorf("left: %s", entries)
	}
	if err := npx.Sweep(filepath.Join(root, "nowhere"), nil, time.Now()); err != nil {
		t.Error(err)
	}
}
