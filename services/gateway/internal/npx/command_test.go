package npx_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
)

func TestParse_ReturnsPackageAndProgram(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]npx.Command{
		"npx -y @acme/server@1.2.3 /srv --flag":         {Package: "@acme/server@1.2.3", Args: []string{"/srv", "--flag"}},
		"/usr/bin/npx --yes server":                     {Package: "server"},
		"npx -y -- server -y -p x":                      {Package: "server", Args: []string{"-y", "-p", "x"}},
		"npx -y -q server -p other":                     {Package: "server", Args: []string{"-p", "other"}},
		"npx -p @acme/server@^1 run a":                  {Package: "@acme/server@^1", Program: "run", Args: []string{"a"}},
		"npx --package=@acme/server -y run --package=x": {Package: "@acme/server", Program: "run", Args: []string{"--package=x"}},
		"npx -y --package @acme/server -- run -c":       {Package: "@acme/server", Program: "run", Args: []string{"-c"}},
		"npm exec -y -- server --flag":                  {Package: "server", Args: []string{"--flag"}},
		"npm exec server a -y -- --flag":                {Package: "server", Args: []string{"a", "--flag"}},
		"npm x --package=p -- run":                      {Package: "p", Program: "run"},
		"npx -y github:acme/server#semver:^1":           {Package: "github:acme/server#semver:^1"},
		"npx -y git+file:///srv/repo#main":              {Package: "git+file:///srv/repo#main"},
		"npx -y /srv/a.tgz x":                           {Package: "/srv/a.tgz", Args: []string{"x"}},
		"npx -p @acme/server@file:///srv/a.tar.gz run":  {Package: "@acme/server@file:///srv/a.tar.gz", Program: "run"},
		"npx -y https://x.example/a.tgz?token=1":        {Package: "https://x.example/a.tgz?token=1"},
	} {
		got, why := npx.Parse(strings.Fields(text))
		if got == nil || got.Package != want.Package || got.Program != want.Program || !slices.Equal(got.Args, want.Args) {
			t.Errorf("%s: %+v, %s", text, got, why)
		}
	}
}

func TestParse_RefusesUnsupportedForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"npx -c server": "does not support its flag -c", "npx -y -p server -c run": "flag -c", "npx --registry=x server": "flag --registry",
		"npx -p a -p b run": "several packages", "npx -p a": "no program", "npx -y": "no package", "npx -p": "has no value", "npm exec": "no package",
		"npm exec server --flag": "flag --flag", "npx ./server": "of this machine", "npx /srv/server": "of this machine", "npx ../x": "of this machine", "npx ~/x": "of this machine",
		"npx file:../x": "of this machine", "npx a@file:../x": "of this machine", "npx a@./x": "of this machine", "npx server.tgz": "of this machine", "npx -p server ./run": "by its path",
		"npx --yes=false server": "flag --yes", "npx /srv/folder.tgz/": "of this machine", "npx file:a.tgz": "of this machine", "npx ./a.tgz": "absolute path of a tarball",
		"npx git+file:./x": "git+file:///", "npx a@git+file://x/y": "git+file:///", "npx /srv/a%20b.tgz": "of this machine", "npx link:/srv/a.tgz": "of this machine",
		"npm start": "", "node server.js": "", "uvx server": "", "sh -c npx": "", "npm -y exec server": "",
	} {
		got, why := npx.Parse(strings.Fields(text))
		if got != nil || !strings.Contains(why, want) || (why == "") != (want == "") {
			t.Errorf("%s: %+v, %q, want %q", text, got, why, want)
		}
	}
	for _, command := range [][]string{nil, {"npx", ""}, {"npx", "a b"}, {"npx", "a\x1b"}, {"npx", "--", "-a"}, {"npx", strings.Repeat("a", 2000)}} {
		if got, _ := npx.Parse(command); got != nil {
			t.Errorf("%q: %+v", command, got)
		}
	}
}

func TestCommand_DescribesItsPackage(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]struct {
		name        string
		exact, bare bool
		shown       string
	}{
		"server": {"server", false, true, "server"}, "@acme/server": {"@acme/server", false, true, "@acme/server"},
		"server@1.2.3": {"server", true, false, "server@1.2.3"}, "@acme/server@v1.2.3-rc.1+x": {"@acme/server", true, false, "@acme/server@v1.2.3-rc.1+x"},
		"server@latest": {"server", false, false, "server@latest"}, "server@1": {"server", false, false, "server@1"}, "server@^1.2.3": {"server", false, false, "server@^1.2.3"},
		"server@1.2.3||2": {"server", false, false, "server@1.2.3||2"}, "server@": {"server", false, false, "server@"},
		"a@npm:b@1.2.3": {"", true, false, "a@npm:b@1.2.3"}, "a@npm:b": {"", false, false, "a@npm:b"},
		"github:acme/server": {"", false, false, "github:acme/server"}, "acme/server": {"", false, false, "acme/server"},
		"git+https://me:pw@x.example/a.git#0123456789012345678901234567890123456789": {"", true, false, "git+https://x.example/a.git#0123456789012345678901234567890123456789"},
		"git+https://x.example/a.git#main":                                           {"", false, false, "git+https://x.example/a.git#main"},
		"https://me:pw@x.example/a.tgz?token=1#x":                                    {"", false, false, "https://x.example/a.tgz#x"},
	} {
		c := npx.Command{Package: spec}
		if c.Name() != want.name && want.name != "" || c.IsExact() != want.exact || c.IsBare() != want.bare || c.DisplayPackage() != want.shown {
			t.Errorf("%s: %q, exact %v, bare %v, shown %q", spec, c.Name(), c.IsExact(), c.IsBare(), c.DisplayPackage())
		}
	}
	if c := (npx.Command{Package: "server", Program: "run"}); c.IsBare() {
		t.Error("a command with a named program is bare")
	}
}

func TestFile_ReturnsThePathOfALocalTarball(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"/srv/a.tgz": "/srv/a.tgz", "file:/srv/a.TAR.GZ": "/srv/a.TAR.GZ", "file:///srv/a.tar": "/srv/a.tar", "a@/srv/a.tgz": "/srv/a.tgz", "@acme/a@file:/srv/a.tgz": "/srv/a.tgz",
		"https://x.example/a.tgz": "", "a@https://x.example/a.tgz": "", "a": "", "git+file:///srv/a.tgz": "", "./a.tgz": "", "/srv/a": "",
	} {
		c := npx.Command{Package: spec}
		if got := c.File(); got != want || want != "" && c.IsExact() {
			t.Errorf("%s: %q, want %q; exact: %v", spec, got, want, c.IsExact())
		}
	}
}
