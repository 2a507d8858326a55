package packages_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// noLook is a policy that denies the server's tool to everyone except the agent `agent`.
const noLook = `version: 1
name: addresses
default: deny
rules:
  - {name: look, match: {tool: look, principal: agent}, action: allow}
`

// gitRepository creates a git repository with a package, and returns its directory and the id of its first commit. A
// second commit changes the version of the package to 1.1.0.
func gitRepository(t *testing.T) (dir, first string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "repository")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		t.Helper()
		c := exec.Command("git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"}, args...)...)
		c.Dir, c.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1"}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func(version string) string {
		t.Helper()
		manifest := maps.Clone(acme)
		manifest["name"], manifest["version"] = "@acme/server", version
		raw, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"package.json": string(raw), "cli.js": server, "install.js": installScript} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		git("add", ".")
		git("commit", "-q", "-m", version)
		return git("rev-parse", "HEAD")
	}
	git("init", "-q", "-b", "main")
	first = commit("1.0.0")
	commit("1.1.0")
	return dir, first
}

// Packages are installed from the addresses of tarballs and git repositories. The policy applies to the tools of the
// servers in these packages.
func TestNpx_PackagesAreInstalledFromAddresses(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	r.publish(t, "@acme/server", "1.0.0", acme, map[string]string{"cli.js": server, "install.js": installScript})
	repository, first := gitRepository(t)
	archive := filepath.Join(t.TempDir(), "server.tgz")
	if err := os.WriteFile(archive, r.tarball(t, "@acme/server", "1.0.0"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := writeMesh(t, r, strings.ReplaceAll(fmt.Sprintf(`  tarball: {stdio: {command: [npx, -y, "REGISTRY/@acme/server/-/server-1.0.0.tgz?token=%[3]s", --flag], ENV}}
  named: {stdio: {command: [npx, -y, -p, "@acme/server@REGISTRY/@acme/server/-/server-1.0.0.tgz", server, --flag], ENV}}
  file: {stdio: {command: [npx, -y, "%[4]s", --flag], ENV}}
  filename: {stdio: {command: [npx, -y, "-p", "@acme/server@file:%[4]s", server, --flag], ENV}}
  git: {stdio: {command: [npx, -y, "git+file://%[1]s", --flag], ENV}}
  commit: {stdio: {command: [npx, -y, "git+file://%[1]s#%[2]s", --flag], ENV}}
  apart: {stdio: {command: [npx, -y, "git+file://%[1]s#main", --flag], ENV, sandbox: {network: false}}}
`, repository, first, secret, archive), "ENV", `env: {npm_config_registry: "REGISTRY"}`))
	if err := os.WriteFile(m.Policy, []byte(noLook), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	for name, version := range map[string]string{"tarball": "1.0.0", "named": "1.0.0", "file": "1.0.0", "filename": "1.0.0", "git": "1.1.0", "commit": "1.0.0", "apart": "1.1.0"} {
		got := m.callLook(t, stack.AgentToken, name)
		if got.Version != version || len(got.Args) != 1 || got.Args[0] != "--flag" || !strings.HasPrefix(got.Program, filepath.Join(m.Dir, "data/gateway/programs", name)+"/") {
			t.Errorf("%s: the server runs as %+v", name, got)
		}
		if got.Install == nil || got.Install.Network == (name == "apart") {
			t.Errorf("%s: the install script recorded %+v", name, got.Install)
		}
		denied := m.call(t, stack.OtherToken, name)
		if denied.Code == 0 || !strings.Contains(denied.Stdout+denied.Stderr, "denied_by_default") && !strings.Contains(denied.Stdout+denied.Stderr, "no rule allows") {
			t.Errorf("%s: a caller without a rule receives %+v", name, denied)
		}
		if n := len(m.installed(name)); n != 1 {
			t.Errorf("%s: it has %d installations", name, n)
		}
	}
	if shown := m.Stderr() + m.runAsOperator(t, "status").Stdout; strings.Contains(shown, secret) {
		t.Error("the log or `status` shows the query of an address")
	}
}

// programsWithoutGit returns a directory with the programs that npm needs, except for git.
func programsWithoutGit(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"node", "npm", "npx", "sh", "env"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A package can't be installed from its address. The operator receives the reason, and callers receive no text from
// npm.
func TestNpx_FailedAddressIsNamed(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	repository, _ := gitRepository(t)
	m := writeMesh(t, r, strings.NewReplacer("REPOSITORY", repository, "EMPTY", t.TempDir(), "PROGRAMS", programsWithoutGit(t)).Replace(`  absent: {stdio: {command: [npx, -y, "REGISTRY/none.tgz"], env: {npm_config_registry: "REGISTRY"}}}
  empty: {stdio: {command: [npx, -y, "git+file://EMPTY"], env: {npm_config_registry: "REGISTRY"}}}
  branch: {stdio: {command: [npx, -y, "git+file://REPOSITORY#none"], env: {npm_config_registry: "REGISTRY"}}}
  nogit: {stdio: {command: [npx, -y, "git+file://REPOSITORY"], env: {PATH: "PROGRAMS", npm_config_registry: "REGISTRY"}}}
  away: {stdio: {command: [npx, -y, "git+ssh://git@127.0.0.1:1/acme/server.git"], env: {npm_config_registry: "REGISTRY"}}}
  scheme: {stdio: {command: [npx, -y, "ssh://git@127.0.0.1/acme/server.git"], env: {npm_config_registry: "REGISTRY"}}}
`))
	m.start(t)
	for name, reason := range map[string]string{
		"absent": "404 Not Found", "empty": "does not appear to be a git repository", "branch": "'none' did not match", "nogit": "spawn git",
		"away": "Could not read from remote repository", "scheme": "Unsupported URL Type",
	} {
		ran := m.call(t, stack.AgentToken, name)
		if ran.Code == 0 || !strings.Contains(ran.Stdout+ran.Stderr, "for server "+name+" failed") || strings.Contains(ran.Stdout+ran.Stderr, reason) {
			t.Errorf("%s: the agent receives %s%s", name, ran.Stdout, ran.Stderr)
		}
		if status := m.runAsOperator(t, "status"); !strings.Contains(status.Stdout, reason) {
			t.Errorf("%s: status does not print %q: %s", name, reason, status.Stdout)
		}
		if left := m.installed(name); len(left) != 0 {
			t.Errorf("%s: files of the installation are left: %s", name, left)
		}
	}
	if doctor := m.runAsOperator(t, "doctor").Stdout; !strings.Contains(doctor, "git ls-remote ADDRESS") {
		t.Errorf("doctor does not say how to check a repository: %s", doctor)
	}
}
