package packages_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }

const (
	policy = "version: 1\nname: open\ndefault: allow\n"
	secret = "q7Rk2vX9pLm4Tz8WcB1n"
)

// acme is the manifest of a package that has an install script.
var acme = map[string]any{"bin": map[string]string{"server": "cli.js"}, "scripts": map[string]string{"postinstall": "node install.js"}}

// lookResult is the result of a call to the tool of the server in the test package.
type lookResult struct {
	Program, Version, Cwd, Key string
	Args, Wrote                []string
	Pid                        int
	Install                    *struct {
		Wrote   []string
		Env     string
		Network bool
	}
}

// mesh is a mesh with servers that npx starts.
type mesh struct {
	*stack.Stack
	registry *registry
	*stack.Process
}

func writeMesh(t *testing.T, r *registry, servers string) *mesh {
	t.Helper()
	s := stack.WriteConfig(t, stack.Options{Policy: policy, Servers: strings.ReplaceAll(servers, "REGISTRY", r.url)})
	s.Env = []string{"CAUSE_SECRET=" + secret}
	return &mesh{Stack: s, registry: r}
}

func (m *mesh) start(t *testing.T) {
	t.Helper()
	m.Process = stack.Start(t, m.Stack)
}

// restart kills the mesh and starts it with other servers.
func (m *mesh) restart(t *testing.T, servers string) {
	t.Helper()
	m.Kill()
	text, err := os.ReadFile(m.Config)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "servers:\n")
	if err := os.WriteFile(m.Config, []byte(head+"servers:\n"+strings.ReplaceAll(servers, "REGISTRY", m.registry.url)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
}

func (m *mesh) call(t *testing.T, token, server string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{
		Args: []string{"call", server, "look", "--config", m.Config, "--addr", m.GRPC},
		Env:  []string{"SLUICE_TOKEN=" + token, "SLUICE_URL=" + m.Process.URL, "CAUSE_SECRET=" + secret},
	})
}

// callLook calls the server's tool. It repeats the call up to ten times, as long as the response says that the server
// is still starting because its package is being installed.
func (m *mesh) callLook(t *testing.T, token, server string) (got lookResult) {
	t.Helper()
	ran := m.call(t, token, server)
	for attempt := 0; attempt < 10 && strings.Contains(ran.Stdout+ran.Stderr, "the server is still starting"); attempt++ {
		ran = m.call(t, token, server)
	}
	_, text, _ := strings.Cut(ran.Stdout, "got:")
	text, _, ok := strings.Cut(text, ":end")
	if !ok {
		t.Fatalf("%s answers %+v\n%s", server, ran, m.Stderr())
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return got
}

// runAsOperator runs a command with the operator's token.
func (m *mesh) runAsOperator(t *testing.T, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{
		Args: append(args, "--config", m.Config, "--addr", m.GRPC),
		Env:  []string{"SLUICE_TOKEN=" + stack.OperatorToken, "SLUICE_AGENT_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + m.Process.URL, "CAUSE_SECRET=" + secret},
	})
}

// installed returns the package directories of a server.
func (m *mesh) installed(server string) []string {
	names, _ := filepath.Glob(filepath.Join(m.Dir, "data/gateway/programs", server, "*"))
	return names
}

const servers = `  one: {stdio: {command: [npx, -y, "@acme/server@1.0.0", --flag, value], env: {API_KEY: "${env:CAUSE_SECRET}", npm_config_registry: "REGISTRY", NPM_CONFIG_NOTE: "${env:CAUSE_SECRET}", OTHER: OTHERDIR}}}
  two: {stdio: {command: [npm, exec, --yes, --package=@acme/server@1.0.0, --, server], env: {npm_config_registry: "REGISTRY"}}}
  apart: {stdio: {command: [npx, --yes, -p, "@acme/server@1.0.0", server], env: {npm_config_registry: "REGISTRY"}, sandbox: {network: false}}}
  open: {stdio: {command: [npx, -y, "@acme/server@1.0.0"], env: {npm_config_registry: "REGISTRY"}, sandbox: {mode: off}}}
`

// Case X21. A server's package is installed once, and the installation has no access to the server's secrets. Only the
// installation process can write to the package's directory, and only the server's processes can read it.
func TestNpx_PackageIsInstalledOnceAndReadOnly(t *testing.T) {
	t.Parallel()
	held := os.Getenv("SLUICE_TEST_NO_SANDBOX") == ""
	r := startRegistry(t)
	r.publish(t, "@acme/server", "1.0.0", acme, map[string]string{"cli.js": server, "install.js": installScript})
	m := writeMesh(t, r, servers)
	text, err := os.ReadFile(m.Config)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(m.Dir, "data/gateway/programs/two")
	if err := os.WriteFile(m.Config, []byte(strings.Replace(string(text), "OTHERDIR", other, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start(t)
	var got [2]lookResult
	var both sync.WaitGroup
	for i, token := range []string{stack.AgentToken, stack.OtherToken} {
		both.Go(func() { got[i] = m.callLook(t, token, "one") })
	}
	two := m.callLook(t, stack.AgentToken, "two")
	both.Wait()

	first := got[0]
	if first.Pid == got[1].Pid && first.Cwd == got[1].Cwd || first.Program != got[1].Program {
		t.Errorf("the processes of two principals run %+v and %+v", first, got[1])
	}
	if !strings.HasPrefix(first.Program, filepath.Join(m.Dir, "data/gateway/programs/one")+"/") || !slices.Equal(first.Args, []string{"--flag", "value"}) || first.Key == "" {
		t.Errorf("the server runs as %+v", first)
	}
	if n := len(m.installed("one")); n != 1 {
		t.Errorf("the server has %d folders: %s", n, m.installed("one"))
	}
	if !strings.HasPrefix(two.Program, other+"/") {
		t.Errorf("the other server with this package runs %s", two.Program)
	}
	if first.Install == nil || two.Install == nil {
		t.Fatal("the install script did not run")
	}
	for _, name := range []string{"API_KEY", "NPM_CONFIG_NOTE", secret} {
		if strings.Contains(first.Install.Env, name) {
			t.Errorf("the install script reads %s: %s", name, first.Install.Env)
		}
	}
	if !strings.Contains(first.Install.Env, r.url) || !first.Install.Network {
		t.Errorf("the install script has no registry: %+v", first.Install)
	}
	checked := m.runAsOperator(t, "config", "check")
	if want := "does not get NPM_CONFIG_NOTE, because each refers to a secret"; !strings.Contains(checked.Stdout+checked.Stderr, want) {
		t.Errorf("config check does not say %q: %s%s", want, checked.Stdout, checked.Stderr)
	}
	open := m.callLook(t, stack.AgentToken, "open")
	if len(open.Wrote) < 6 || len(open.Install.Wrote) < 7 {
		t.Errorf("without a sandbox only these attempts succeed, so the test proves little: %s, and during the installation %s", open.Wrote, open.Install.Wrote)
	}
	apart := m.callLook(t, stack.AgentToken, "apart")
	if n := r.downloadCount("@acme/server", "1.0.0"); n != 4 {
		t.Errorf("the package was fetched %d times, want once for each of four servers", n)
	}
	if !held {
		return
	}
	byLandlock := strings.Contains(m.runAsOperator(t, "status").Stdout, "enforced by Landlock") // Landlock can't restrict chmod; status reports whether Landlock is used
	for _, one := range []lookResult{first, got[1], two} {
		one.Wrote = slices.DeleteFunc(one.Wrote, func(what string) bool { return byLandlock && what == "chmod" })
		if !slices.Equal(one.Wrote, []string{"own"}) {
			t.Errorf("the server %s wrote to %s", one.Program, one.Wrote)
		}
		if !slices.Equal(one.Install.Wrote, []string{"own", "temporary", "homeOfItsOwn"}) {
			t.Errorf("the install script wrote to %s", one.Install.Wrote)
		}
	}
	if apart.Install == nil || apart.Install.Network || !slices.Equal(apart.Install.Wrote, first.Install.Wrote) {
		t.Errorf("the install script of a server without a network: %+v", apart.Install)
	}
}

// A failed installation is reported to agents and operators. Only operators receive npm's error message.
func TestNpx_FailedInstallationIsNamed(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	r.publish(t, "@acme/failing", "1.0.0", map[string]any{"bin": "cli.js", "scripts": map[string]string{"postinstall": "node -e 'console.error(`no compiler on a Monday`); process.exit(7)'"}}, map[string]string{"cli.js": server})
	r.publish(t, "@acme/library", "1.0.0", map[string]any{"main": "cli.js"}, map[string]string{"cli.js": server})
	r.publish(t, "@acme/elsewhere", "1.0.0", map[string]any{"bin": "cli.js", "scripts": map[string]string{"postinstall": "rm cli.js && ln -s /bin/true cli.js"}}, map[string]string{"cli.js": server})
	m := writeMesh(t, r, `  absent: {stdio: {command: [npx, -y, "@acme/absent@1.0.0"], env: {npm_config_registry: "REGISTRY", K: "${env:CAUSE_SECRET}"}}}
  failing: {stdio: {command: [npx, -y, "@acme/failing@1.0.0"], env: {npm_config_registry: "REGISTRY"}}}
  library: {stdio: {command: [npx, -y, "@acme/library@1.0.0"], env: {npm_config_registry: "REGISTRY"}}}
  elsewhere: {stdio: {command: [npx, -y, "@acme/elsewhere@1.0.0"], env: {npm_config_registry: "REGISTRY"}}}
`)
	m.start(t)
	for name, reason := range map[string]string{
		"absent": "E404", "failing": "no compiler on a Monday", "library": "has no program to run", "elsewhere": "path escapes",
	} {
		said := fmt.Sprintf("the installation of @acme/%s@1.0.0 for server %s failed", name, name)
		ran := m.call(t, stack.AgentToken, name)
		if ran.Code == 0 || !strings.Contains(strings.ToLower(ran.Stdout+ran.Stderr), said) || strings.Contains(ran.Stdout+ran.Stderr, reason) {
			t.Errorf("%s: the agent receives %s%s", name, ran.Stdout, ran.Stderr)
		}
		status := m.runAsOperator(t, "status")
		if !strings.Contains(status.Stdout, said) || !strings.Contains(status.Stdout, reason) {
			t.Errorf("%s: status does not print %q and %q: %s", name, said, reason, status.Stdout)
		}
		if left := m.installed(name); len(left) != 0 {
			t.Errorf("%s: files of the installation are left: %s", name, left)
		}
	}
	doctor := m.runAsOperator(t, "doctor")
	for _, want := range []string{"the installation of @acme/absent@1.0.0 for server absent failed", "E404", "npm reaches its registry"} {
		if !strings.Contains(doctor.Stdout, want) {
			t.Errorf("doctor does not print %q: %s", want, doctor.Stdout)
		}
	}
	if n := strings.Count(m.Stderr(), "package not installed; calls to the server are refused"); n < 4 || n > 12 {
		t.Errorf("the log has %d lines about packages that were not installed:\n%s", n, m.Stderr())
	}
}

// Case X21. An interrupted installation is never used, and the package is installed again.
func TestNpx_InterruptedInstallationIsRepeated(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	r.publish(t, "@acme/server", "1.0.0", acme, map[string]string{"cli.js": server, "install.js": installScript})
	asked, release := r.holdDownloads()
	entry := "  one: {stdio: {command: [npx, -y, \"@acme/server@1.0.0\"], env: {npm_config_registry: \"REGISTRY\"}}, timeout: 2s}\n"
	m := writeMesh(t, r, entry)
	m.start(t)
	ran := m.call(t, stack.AgentToken, "one")
	if !strings.Contains(ran.Stdout+ran.Stderr, "still starting: its package is being installed") {
		t.Errorf("during the installation an agent receives %s%s", ran.Stdout, ran.Stderr)
	}
	<-asked
	cut := m.installed("one")
	if len(cut) != 1 || !strings.HasPrefix(filepath.Base(cut[0]), "new-") {
		t.Fatalf("during the installation the folders are %s", cut)
	}
	m.Kill()
	release()
	m.restart(t, strings.Replace(entry, ", timeout: 2s", "", 1))
	if got := m.callLook(t, stack.AgentToken, "one"); got.Version != "1.0.0" || got.Install == nil {
		t.Errorf("after the restart the server is %+v", got)
	}
	if now := m.installed("one"); len(now) != 1 || now[0] == cut[0] {
		t.Errorf("after the restart the folders are %s", now)
	}
}

// A package that is no longer used by any server is removed after a grace period, unless a server uses it again within
// that period.
func TestNpx_UnusedFolderIsRemoved(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	r.publish(t, "@acme/server", "1.0.0", acme, map[string]string{"cli.js": server, "install.js": installScript})
	one := "  one: {stdio: {command: [npx, -y, \"@acme/server@1.0.0\"], env: {npm_config_registry: \"REGISTRY\"}}}\n"
	none := "  other: {stdio: {command: [cat]}}\n"
	m := writeMesh(t, r, one)
	m.start(t)
	before := m.callLook(t, stack.AgentToken, "one").Program
	age := func() {
		t.Helper()
		marks, _ := filepath.Glob(filepath.Join(m.Dir, "data/gateway/programs/one/*/unused"))
		if len(marks) != 1 {
			t.Fatalf("the folder is not marked as unused: %s", m.installed("one"))
		}
		old := time.Now().Add(-8 * 24 * time.Hour)
		if err := os.Chtimes(marks[0], old, old); err != nil {
			t.Fatal(err)
		}
	}
	m.restart(t, none)
	age()
	m.restart(t, one) // restarts with the first configuration
	if after := m.callLook(t, stack.AgentToken, "one").Program; after != before {
		t.Errorf("the package was installed again: %s, before %s", after, before)
	}
	m.restart(t, none)
	if len(m.installed("one")) != 1 {
		t.Error("the package was removed before the end of the grace period")
	}
	age()
	m.restart(t, none)
	if left, err := os.ReadDir(filepath.Join(m.Dir, "data/gateway/programs")); err != nil || len(left) != 0 {
		t.Errorf("left: %s, %v", left, err)
	}
	if n := r.downloadCount("@acme/server", "1.0.0"); n != 1 {
		t.Errorf("the package was fetched %d times", n)
	}
}

// A package without an exact version is updated when its installation is a day old. If the registry is unavailable, the
// older version is still used.
func TestNpx_FloatingVersionIsUpdated(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	files := map[string]string{"cli.js": server, "install.js": installScript}
	r.publish(t, "@acme/server", "1.0.0", acme, files)
	entry := "  one: {stdio: {command: [npx, -y, \"@acme/server@latest\"], env: {npm_config_registry: \"REGISTRY\"}, recycle: 1}}\n"
	m := writeMesh(t, r, entry)
	m.start(t)
	if got := m.callLook(t, stack.AgentToken, "one").Version; got != "1.0.0" {
		t.Fatalf("version %s", got)
	}
	r.publish(t, "@acme/server", "1.1.0", acme, files)
	age := func() {
		t.Helper()
		old := time.Now().Add(-25 * time.Hour)
		for _, dir := range m.installed("one") {
			if err := os.Chtimes(filepath.Join(dir, "program.json"), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	m.restart(t, entry)
	if got := m.callLook(t, stack.OtherToken, "one").Version; got != "1.0.0" {
		t.Errorf("on the same day the version is %s", got)
	}
	age()
	r.setUnavailable(true)
	m.restart(t, entry)
	if got := m.callLook(t, stack.AgentToken, "one").Version; got != "1.0.0" {
		t.Errorf("without the registry the version is %s", got)
	}
	if log := m.Stderr(); !strings.Contains(log, "no newer version of the package was installed; the server keeps the older one") {
		t.Errorf("the log does not report it:\n%s", log)
	}
	const notice = "no newer version of @acme/server@latest could be installed, so version 1.0.0 is still used: "
	for _, command := range []string{"status", "doctor"} {
		if said := m.runAsOperator(t, command).Stdout; !strings.Contains(said, notice) {
			t.Errorf("%s does not print %q:\n%s", command, notice, said)
		}
	}
	r.setUnavailable(false)
	m.restart(t, entry)
	eventually.Within(t, 3*time.Minute, "the newer version is installed after a day", func() bool { return m.callLook(t, stack.AgentToken, "one").Version == "1.1.0" })
	if said := m.runAsOperator(t, "status").Stdout; strings.Contains(said, "could be installed") {
		t.Errorf("status reports a failed update after the update:\n%s", said)
	}
	eventually.Holds(t, "the older version is removed when no process runs it", func() bool { return len(m.installed("one")) == 1 })
}

// npx commands whose packages the gateway does not install itself run unchanged. `config check` reports the commands
// that install their package at each start, unless the operator chose this with install: each_start.
func TestNpx_OtherFormsRunUnchanged(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	r.publish(t, "@acme/server", "1.0.0", acme, map[string]string{"cli.js": server, "install.js": installScript})
	m := writeMesh(t, r, `  call: {stdio: {command: [npx, -y, -p, "@acme/server@1.0.0", -c, "server --from-a-shell"], env: {npm_config_registry: "REGISTRY"}}}
  chosen: {stdio: {command: [npx, -y, "@acme/server@1.0.0"], env: {npm_config_registry: "REGISTRY"}, install: each_start}}
  several: {stdio: {command: [npx, -p, "@acme/server@1.0.0", -p, "@acme/server@1.0.0", server]}}
  folder: {stdio: {command: [npx, ./server]}}
  relative: {stdio: {command: [npx, "git+file:./server"]}}
`)
	m.start(t)
	for name, args := range map[string][]string{"call": {"--from-a-shell"}, "chosen": {}} {
		got := m.callLook(t, stack.AgentToken, name)
		if !slices.Equal(got.Args, args) || strings.Contains(got.Program, "gateway/programs") {
			t.Errorf("%s runs as %+v", name, got)
		}
	}
	checked := m.runAsOperator(t, "config", "check")
	for _, want := range []string{
		"servers.call installs its package at each start, in a folder of each caller's process: the gateway does not support its flag -c",
		"servers.several installs its package at each start, in a folder of each caller's process: it names several packages",
		"servers.folder installs its package at each start, in a folder of each caller's process: its package is a folder or a relative path of this machine: write the absolute path of a tarball (.tgz)",
		"servers.relative installs its package at each start, in a folder of each caller's process: its package is a git repository of this machine without an absolute path: write git+file:///PATH",
	} {
		if !strings.Contains(checked.Stdout, want) {
			t.Errorf("config check does not print %q: %s%s", want, checked.Stdout, checked.Stderr)
		}
	}
	if strings.Contains(checked.Stdout, "servers.chosen") {
		t.Errorf("config check warns about a setting that the operator chose: %s", checked.Stdout)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "data/gateway/programs")); !os.IsNotExist(err) {
		t.Errorf("packages were installed: %v", err)
	}
}

// Case X21. The server's limits also apply to the installation of its package, and the error contains the limit's
// configuration key.
func TestNpx_LimitsApplyToTheInstallation(t *testing.T) {
	t.Parallel()
	r := startRegistry(t)
	fill := "for (let i = 0; i < 64; i++) fs.writeFileSync(`file${i}`, Buffer.alloc(1 << 20, 1)); setTimeout(() => {}, 60000)"
	r.publish(t, "@acme/large", "1.0.0", map[string]any{"bin": "cli.js", "scripts": map[string]string{"postinstall": "node fill.js"}}, map[string]string{"cli.js": server, "fill.js": "const fs = require('fs'); " + fill})
	m := writeMesh(t, r, "  large: {stdio: {command: [npx, -y, \"@acme/large@1.0.0\"], env: {npm_config_registry: \"REGISTRY\"}, limits: {disk: 16MiB}}}\n")
	m.start(t)
	ran := m.call(t, stack.AgentToken, "large")
	said := "the installation of @acme/large@1.0.0 for server large failed: its folder reached its limit of 16 MiB, or 4096 files (servers.large.stdio.limits.disk)"
	if !strings.Contains(strings.ToLower(ran.Stdout+ran.Stderr), strings.ToLower(said)) {
		t.Errorf("the agent does not receive %q: %s%s", said, ran.Stdout, ran.Stderr)
	}
	if left := m.installed("large"); len(left) != 0 {
		t.Errorf("left: %s", left)
	}
}
