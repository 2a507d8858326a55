//go:build compose

package compose_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	// project is the name of the compose project that the tests create.
	project = "sluice-e2e"
	// imageTime is the maximum time for building the images, which may include building Go from source.
	imageTime = 20 * time.Minute
	// readyTime is the maximum time until all containers are healthy.
	readyTime = 3 * time.Minute
	// commandTime is the maximum time for every other command.
	commandTime = time.Minute
)

// deployment is a mesh that compose has started.
type deployment struct {
	// root is the repository's root directory, in which `docker compose` runs.
	root string
	env  []string
	// port contains the ports published on 127.0.0.1, by the name of the environment variable that sets the port.
	port map[string]int
	// config is the directory with a copy of the configuration that the mesh services read.
	config string
	// keys is the directory with a copy of the keys that the setup service has created, including the CA's key.
	keys string
	// agent and operator are the tokens of the agent and of the operator.
	agent, operator string
}

// startDeployment starts a deployment and removes it when the test ends.
func startDeployment(t *testing.T) *deployment {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{root: root, keys: t.TempDir(), env: []string{
		"COMPOSE_PROJECT_NAME=" + project, "COMPOSE_FILE=deploy/compose.yaml:deploy/servers.yaml",
	}}
	d.choosePorts(t)
	d.copyConfig(t)
	if _, err := d.tryRun(t, commandTime, "docker", "buildx", "version"); err != nil {
		d.env = append(d.env, "DOCKER_BUILDKIT=0")
	}
	for line := range strings.Lines(d.run(t, imageTime, "deploy/local-images.sh")) {
		d.env = append(d.env, strings.TrimPrefix(strings.TrimSpace(line), "export "))
	}
	d.down(t) // an earlier run may have been killed
	d.logTime(t, "build", func() { d.run(t, imageTime, "docker", "compose", "build") })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs:\n%s", d.compose(t, "logs", "--no-color", "--tail", "60"))
		}
		d.logTime(t, "down", func() { d.down(t) })
	})
	d.logTime(t, "up", func() { d.run(t, readyTime, "docker", "compose", "up", "--detach", "--wait") })
	d.agent = strings.TrimSpace(d.compose(t, "run", "--rm", "sluice", "token", "show", "agent"))
	d.operator = strings.TrimSpace(d.compose(t, "run", "--rm", "sluice", "token", "show", "operator"))
	d.compose(t, "cp", "setup:/setup/.", d.keys)
	return d
}

func (d *deployment) down(t *testing.T) {
	t.Helper()
	d.run(t, readyTime, "docker", "compose", "--profile", "cli", "down", "--volumes", "--remove-orphans")
}

// choosePorts chooses a free port for every published service, so that the tests do not conflict with another mesh on
// this machine.
func (d *deployment) choosePorts(t *testing.T) {
	t.Helper()
	d.port = make(map[string]int)
	for _, name := range []string{"MCP_PORT", "JAEGER_PORT", "IDENTITY_PORT", "POLICY_PORT", "RATELIMIT_PORT", "APPROVAL_PORT", "WASMAGENT_PORT", "GATEWAY_PORT"} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close() // the listeners stay open until all ports are chosen, so that no port is chosen twice
		d.port[name] = lis.Addr().(*net.TCPAddr).Port
		d.env = append(d.env, fmt.Sprintf("%s=%d", name, d.port[name]))
	}
}

// copyConfig copies the configuration to a directory that the test may change, and makes it readable for the
// containers' users.
func (d *deployment) copyConfig(t *testing.T) {
	t.Helper()
	d.config = filepath.Join(t.TempDir(), "config")
	if err := os.CopyFS(d.config, os.DirFS(filepath.Join(d.root, "deploy", "config"))); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Dir(filepath.Dir(d.config)), filepath.Dir(d.config), d.config} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(d.config, "sluice.yaml")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, "\napprovals: {hold: 0s}\n"...) // a call that needs approval returns at once
	raw = bytes.Replace(raw, []byte("\nservers:\n"), []byte("\nservers:\n"+ownServers), 1)
	written := []error{os.WriteFile(path, raw, 0o644)}
	for name, text := range ownPolicies {
		written = append(written, os.WriteFile(filepath.Join(d.config, "policies", name), []byte(text), 0o644))
	}
	if err := errors.Join(written...); err != nil {
		t.Fatal(err)
	}
	d.env = append(d.env, "CONFIG_DIR="+d.config)
}

// changePolicy edits the demo server's policy. It replaces the string in the parameter was with the string in the
// parameter is.
func (d *deployment) changePolicy(t *testing.T, was, is string) {
	t.Helper()
	path := filepath.Join(d.config, "policies", "demo.yaml")
	raw, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(raw, []byte(was)) {
		t.Fatalf("the policy has no %q: %v", was, err)
	}
	if err := os.WriteFile(path, bytes.Replace(raw, []byte(was), []byte(is), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (d *deployment) addr(port string) string { return fmt.Sprintf("127.0.0.1:%d", d.port[port]) }

// mcp returns the gateway's URL for the demo server.
func (d *deployment) mcp() string { return "http://" + d.addr("MCP_PORT") + "/mcp/demo" }

// key returns the path of a file that the setup service has created.
func (d *deployment) key(path ...string) string {
	return filepath.Join(append([]string{d.keys}, path...)...)
}

// compose runs `docker compose` and returns its output. The test fails if the command fails.
func (d *deployment) compose(t *testing.T, args ...string) string {
	t.Helper()
	return d.run(t, commandTime, "docker", append([]string{"compose"}, args...)...)
}

// cli runs the command line with the operator's token.
func (d *deployment) cli(t *testing.T, args ...string) string {
	t.Helper()
	return d.compose(t, append([]string{"run", "--rm", "sluice"}, args...)...)
}

// run runs a command in the repository's root and returns its standard output. The test fails if the command fails.
func (d *deployment) run(t *testing.T, limit time.Duration, name string, args ...string) string {
	t.Helper()
	out, err := d.tryRun(t, limit, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryRun runs a command in the repository's root. The error includes the end of the standard error.
func (d *deployment) tryRun(t *testing.T, limit time.Duration, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = filepath.Join(d.root, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = d.root
	cmd.Env = append(os.Environ(), d.env...)
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		const most = 4000
		text := said.String()
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err,
			out.String(), text[max(0, len(text)-most):])
	}
	return out.String(), nil
}

// logTime calls the function do and logs the duration of the call.
func (*deployment) logTime(t *testing.T, what string, do func()) {
	t.Helper()
	start := time.Now()
	do()
	t.Logf("%s took %s", what, time.Since(start).Round(100*time.Millisecond))
}
