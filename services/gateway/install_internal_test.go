package gateway

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

// machine returns a directory that looks like a machine with npx, npm, Node and a home directory.
func machine(t *testing.T) (dir string, env config.Env) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"bin/npx", "bin/npm", "bin/node", "bin/global", "home/.npmrc", "work/node_modules/local/package.json", "work/node_modules/.bin/linked", "work/deep/x"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir, func(name string) (string, bool) {
		value, ok := map[string]string{"PATH": filepath.Join(dir, "bin"), "HOME": filepath.Join(dir, "home")}[name]
		return value, ok
	}
}

// Case X21. An installation receives only environment variables that configure npm and do not contain secrets.
func TestNPMEnvironment_ContainsNoSecrets(t *testing.T) {
	t.Parallel()
	dir, env := machine(t)
	s := Server{
		Env: map[string]string{
			"API_KEY": "literal", "PATH": "/x", "NODE_OPTIONS": "--require /x", "npm_package_name": "x", "LD_PRELOAD": "/x",
			"npm_config_registry": "https://r.example", "NPM_CONFIG_FETCH_TIMEOUT": "1", "npm_config__auth": "of a secret", "Npm_Config_Token": "of a secret",
			"HTTPS_PROXY": "http://proxy.example:3128", "https_proxy": "http://me:pw@proxy.example", "http_proxy": "me:pw@proxy.example:3128", "ALL_PROXY": "http://proxy.example/?key=1",
			"no_proxy": "localhost", "NODE_EXTRA_CA_CERTS": "/ca.pem",
		},
		SecretEnv: []string{"npm_config__auth", "Npm_Config_Token", "HTTPS_PROXY", "https_proxy", "http_proxy", "ALL_PROXY", "no_proxy"},
	}
	vars, secret := s.npmEnvironment(env)
	want := map[string]string{
		"npm_config_userconfig": filepath.Join(dir, "home/.npmrc"), "npm_config_registry": "https://r.example", "NPM_CONFIG_FETCH_TIMEOUT": "1",
		"HTTPS_PROXY": "http://proxy.example:3128", "no_proxy": "localhost", "NODE_EXTRA_CA_CERTS": "/ca.pem",
	}
	if !maps.Equal(vars, want) {
		t.Errorf("the variables are %v", vars)
	}
	if !slices.Equal(secret, []string{"ALL_PROXY", "Npm_Config_Token", "http_proxy", "https_proxy", "npm_config__auth"}) {
		t.Errorf("the secret variables are %q", secret)
	}
	if vars, _ := (&Server{Env: map[string]string{"NPM_CONFIG_USERCONFIG": "/etc/own"}}).npmEnvironment(env); !maps.Equal(vars, map[string]string{"NPM_CONFIG_USERCONFIG": "/etc/own"}) {
		t.Errorf("with its own configuration the variables are %v", vars)
	}
}

func TestInstallation_IsMadeForPackagesThatNpxInstalls(t *testing.T) {
	t.Parallel()
	dir, env := machine(t)
	work := filepath.Join(dir, "work")
	for text, c := range map[string]struct {
		dir       string
		installed bool
	}{
		"npx -y server":              {"", true},
		dir + "/bin/npx -y server":   {"", true},
		"npm exec server":            {"", true},
		"npx -y global":              {"", false}, // npx runs the program in the directory of npx
		"npx -y global@1.0.0":        {"", true},
		"npx -y -p global other":     {"", true},
		"npx -y @acme/global":        {"", true},
		"npx -y local":               {work, false}, // npx runs the project's program
		"npx -y local@1":             {work + "/deep", false},
		"npx -y linked":              {work, false},
		"npx -y server ":             {work, true},
		"npx -y  local":              {"", true}, // a private directory contains no project
		"npx -c server":              {"", false},
		"node server":                {"", false},
		"/nowhere/npx -y server":     {"", false},
		dir + "/bin/npx -y ./server": {"", false},
	} {
		s := Server{Command: strings.Fields(text), Dir: c.dir}
		in, _ := s.installation("one", "/programs", env)
		if (in != nil) != c.installed || in != nil && (in.NPM != dir+"/bin/npm" || in.Folder != "/programs/one") {
			t.Errorf("%s in %q: %+v", text, c.dir, in)
		}
	}
	each := Server{Command: []string{"npx", "server"}, InstallEachStart: true}
	if in, why := each.installation("one", "/programs", env); in != nil || why != "" {
		t.Errorf("a server that installs at each start: %+v, %s", in, why)
	}
}

func TestInstallation_DigestDependsOnEverythingInstalled(t *testing.T) {
	t.Parallel()
	dir, env := machine(t)
	seen := make(map[string]string)
	add := func(what string, s Server) {
		t.Helper()
		in, _ := s.installation("one", "/programs", env)
		if other, _ := s.installation("one", "/programs", env); in == nil || other.Digest != in.Digest {
			t.Fatalf("%s: %+v, then %+v", what, in, other)
		}
		if other, is := seen[in.Digest]; is {
			t.Errorf("%s is as %s", what, other)
		}
		seen[in.Digest] = what
	}
	add("a package", Server{Command: []string{"npx", "server"}})
	add("a version", Server{Command: []string{"npx", "server@1.0.0"}})
	add("a program", Server{Command: []string{"npx", "-p", "server", "run"}})
	add("a registry", Server{Command: []string{"npx", "server"}, Env: map[string]string{"npm_config_registry": "https://r.example"}})
	add("no network", Server{Command: []string{"npx", "server"}, Sandbox: Sandbox{NoNetwork: true}})
	past := time.Unix(1, 0)
	if err := os.Chtimes(filepath.Join(dir, "bin/node"), past, past); err != nil {
		t.Fatal(err)
	}
	add("another Node", Server{Command: []string{"npx", "server"}})
	archive := filepath.Join(dir, "a.tgz")
	for _, text := range []string{"one", "two, longer"} {
		if err := os.WriteFile(archive, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		add("an archive with the text "+text, Server{Command: []string{"npx", "a@file:" + archive}})
	}
	in, _ := (&Server{Command: []string{"npx", "-y", "server", "argument"}, Env: map[string]string{"KEY": "x"}}).installation("one", "/programs", env)
	if in == nil || seen[in.Digest] != "another Node" {
		t.Error("the digest depends on arguments or variables of the server")
	}
}

// If a program other than npx installs packages, the notes say that the gateway starts the program unchanged and does
// not install its packages.
func TestInstallationNotes_NameProgramsThatInstallPackagesThemselves(t *testing.T) {
	t.Parallel()
	_, env := machine(t)
	command := func(text, dir string, shared bool) Server {
		return Server{Command: strings.Fields(text), Dir: dir, Shared: shared}
	}
	cfg := Config{Data: t.TempDir(), Servers: map[string]Server{
		"fetch": command("uvx mcp-server-fetch", "", false), "work": command("/opt/uv tool run x", "/srv", false), "shared": command("pnpm dlx x", "", true),
		"chosen": {Command: []string{"npx", "-c", "x"}, InstallEachStart: true}, "script": command("npx -c x", "", false), "folder": command("npx -c x", "/srv", false),
		"plain": command("uv pip list", "", false), "once": command("npx server", "", false), "http": {URL: "http://x.example"},
	}}
	want := []string{
		"servers.fetch is started with uvx as it is: uvx itself installs the package, in a folder of each caller's process and with the server's variables; the gateway neither installs the package nor fixes its version",
		"servers.folder installs its package at each start, in HOME of the gateway's user: the gateway does not support its flag -c",
		"servers.script installs its package at each start, in a folder of each caller's process: the gateway does not support its flag -c",
		"servers.shared is started with pnpm as it is: pnpm itself installs the package, in the server's folder and with the server's variables; the gateway neither installs the package nor fixes its version",
		"servers.work is started with uv as it is: uv itself installs the package, in HOME of the gateway's user and with the server's variables; the gateway neither installs the package nor fixes its version",
	}
	if got := cfg.InstallationNotes(env); !slices.Equal(got, want) {
		t.Errorf("the notes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
