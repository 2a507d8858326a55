package programs_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/programs"
)

// writeTree creates files with the given contents and returns the directory that contains them. A file that contains a
// script is executable. If a content begins with "->", writeTree creates a link.
func writeTree(t *testing.T, files map[string]string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if target, isLink := strings.CutPrefix(files[name], "-> "); isLink {
			err = os.Symlink(strings.ReplaceAll(target, "ROOT", root), path)
		} else {
			mode := os.FileMode(0o600)
			if strings.HasPrefix(files[name], "#!") {
				mode = 0o700
			}
			err = os.WriteFile(path, []byte(strings.ReplaceAll(files[name], "ROOT", root)), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Case X15. Files finds the files that a command's processes execute, but no directory to which the processes may
// write.
func TestFiles_FindsFilesThatACommandExecutes(t *testing.T) {
	t.Parallel()
	const script, data = "#!/bin/sh\n", "text"
	for name, c := range map[string]struct {
		files map[string]string
		// In command, dir, env and want, ROOT stands for the root of the tree. want lists the directories and files in
		// the tree that Files must find.
		command string
		dir     string
		env     map[string]string
		want    string
		not     string
	}{
		"a script in a package": {
			files:   map[string]string{"opt/x/package.json": "{}", "opt/x/dist/cli.js": data, "opt/x/node_modules/dep/index.js": data, "opt/node_modules/up/index.js": data, "bin/node": script},
			command: "ROOT/bin/node ROOT/opt/x/dist/cli.js", want: "bin opt/x opt/x/dist opt/x/node_modules opt/node_modules", not: "opt",
		},
		"a script with a joined option": {
			files:   map[string]string{"opt/x/hook.mjs": data, "opt/y/cli.js": data, "bin/node": script},
			command: "ROOT/bin/node --import=ROOT/opt/x/hook.mjs ROOT/opt/y/cli.js", want: "bin opt/x opt/y", not: "opt",
		},
		"a program in node_modules, by a link": {
			files:   map[string]string{"app/node_modules/.bin/server": "-> ../server/cli.js", "app/node_modules/server/cli.js": "#!/usr/bin/env node\n", "tools/node": script},
			command: "ROOT/app/node_modules/.bin/server", env: map[string]string{"PATH": "ROOT/tools"}, want: "app/node_modules app/node_modules/.bin app/node_modules/server tools",
		},
		"a virtual environment": {
			files:   map[string]string{"v/pyvenv.cfg": data, "v/bin/python": "-> python3", "v/bin/python3": "-> ROOT/py/bin/python3", "py/bin/python3": script, "py/lib/python3/os.py": data, "v/lib/python3/site-packages/m.py": data, "s/server.py": data},
			command: "ROOT/v/bin/python ROOT/s/server.py", want: "v v/bin py/bin py/lib s",
		},
		"a chain of links": {
			files:   map[string]string{"links/current": "-> ROOT/releases/2", "releases/2/server": script, "other/note": data},
			command: "ROOT/links/current/server", want: "links releases/2", not: "other",
		},
		"an interpreter of an interpreter": {
			files:   map[string]string{"a/server": "#!ROOT/b/run -x\n", "b/run": "#!ROOT/c/sh\n", "c/sh": script},
			command: "ROOT/a/server", want: "a b c",
		},
		"a shell's text": {
			files:   map[string]string{"x/server.py": data, "y/run.sh": script, "data/db": data, "bin/sh": script},
			command: "ROOT/bin/sh -c 'exec|python3|ROOT/x/server.py;ROOT/y/run.sh'", want: "bin x y", not: "data",
		},
		"data is none": {
			files:   map[string]string{"bin/server": script, "data/db.sqlite": data, "files/note.txt": data, "conf/server.json": data},
			command: "ROOT/bin/server --db ROOT/data/db.sqlite --config ROOT/conf/server.json ROOT/files", want: "bin", not: "data files conf data/db.sqlite",
		},
		"a folder of an interpreter": {
			files:   map[string]string{"bin/python3": script, "x/__main__.py": data, "files/note": data},
			command: "ROOT/bin/python3 ROOT/x ROOT/files", want: "bin x", not: "files",
		},
		"a script in the working folder": {
			files:   map[string]string{"bin/node": script, "work/server/index.js": data, "work/server/package.json": "{}", "work/note": data},
			command: "ROOT/bin/node server/index.js", dir: "ROOT/work", want: "bin work/server", not: "work",
		},
		"a module of the working folder": {
			files:   map[string]string{"bin/python3": script, "work/pkg/__init__.py": data, "work/note": data},
			command: "ROOT/bin/python3 -m pkg", dir: "ROOT/work", want: "bin work/pkg", not: "work",
		},
		"a project of a package manager": {
			files:   map[string]string{"bin/uv": script, "p/pyproject.toml": data, "p/src/s.py": data, "files/note": data},
			command: "ROOT/bin/uv --directory ROOT/p run s ROOT/files", want: "bin p", not: "files",
		},
		"what a fetcher finds in the working folder": {
			files:   map[string]string{"bin/npx": script, "work/package.json": "{}", "work/node_modules/s/index.js": data},
			command: "ROOT/bin/npx -y s", dir: "ROOT/work", want: "bin work/node_modules", not: "work",
		},
		"a local repository": {
			files:   map[string]string{"bin/npx": script, "src/repo/package.json": "{}", "src/repo/.git/HEAD": data, "files/note": data},
			command: "ROOT/bin/npx -y git+file://ROOT/src/repo#main file://ROOT/files", want: "bin src/repo", not: "src files",
		},
		"a named local repository": {
			files:   map[string]string{"bin/npm": script, "src/repo/.git/HEAD": data},
			command: "ROOT/bin/npm exec --package=@acme/x@git+file://ROOT/src/repo -- x", want: "bin src/repo", not: "src",
		},
		"a named archive": {
			files:   map[string]string{"bin/npx": script, "a/x.tgz": data, "b/y.tar.gz": data, "c/z.tar": data, "files/note": data},
			command: "ROOT/bin/npx -p @acme/x@ROOT/a/x.tgz -p y@file:ROOT/b/y.tar.gz --package=file://ROOT/c/z.tar x@ROOT/files", want: "bin a/x.tgz b/y.tar.gz c/z.tar", not: "files",
		},
		"what variables name": {
			files:   map[string]string{"bin/python3": script, "lib1/a.py": data, "lib2/b.py": data, "hook/h.cjs": data, "certs/own.pem": data, "files/note": data},
			command: "ROOT/bin/python3 -c pass", env: map[string]string{"PYTHONPATH": "ROOT/lib1:ROOT/lib2", "NODE_OPTIONS": "--require=ROOT/hook/h.cjs", "SSL_CERT_FILE": "ROOT/certs/own.pem", "FILES": "ROOT/files"},
			want: "bin lib1 lib2 hook certs", not: "files",
		},
		"home is no folder of a program": {
			files:   map[string]string{"home/server.py": data, "home/.local/bin/uvx": script, "home/.local/lib/python3/site-packages/m.py": data, "home/note": data},
			command: "ROOT/home/.local/bin/uvx ROOT/home/server.py", want: "home/server.py home/.local/bin home/.local/lib", not: "home home/.local",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := writeTree(t, c.files)
			put := func(text string) string { return strings.ReplaceAll(text, "ROOT", root) }
			words := strings.Fields(put(strings.ReplaceAll(c.command, "'", "")))
			env := make(map[string]string)
			for name, value := range c.env {
				env[name] = put(value)
			}
			found := programs.Files(&programs.Command{Program: words[0], Args: words[1:], Env: env, Dir: put(c.dir), Home: filepath.Join(root, "home")})
			for want := range strings.FieldsSeq(c.want) {
				path := filepath.Join(root, want)
				if !slices.ContainsFunc(found, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") }) {
					t.Errorf("%s is not found: %s", want, found)
				}
			}
			for _, not := range append(strings.Fields(c.not), "") {
				path := filepath.Join(root, not)
				if slices.ContainsFunc(found, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") }) {
					t.Errorf("%q is found: %s", not, found)
				}
			}
		})
	}
}

// Case X15. System finds the system's directories, and those files elsewhere to which links in the system's settings
// lead.
func TestSystem_FindsSettingsAndCertificates(t *testing.T) {
	t.Parallel()
	found := programs.System()
	for _, path := range []string{"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/local/bin", "/bin/sh"} {
		real, err := filepath.EvalSymlinks(path)
		if err == nil && !slices.ContainsFunc(found, func(f string) bool { return real == f || strings.HasPrefix(real, f+"/") }) {
			t.Errorf("%s is not found: %s", real, found)
		}
	}
	for _, path := range []string{"/", "/tmp", "/home", "/root", "/var", "/run", "/opt", "/srv"} {
		if slices.Contains(found, path) {
			t.Errorf("%s is found", path)
		}
	}
}
