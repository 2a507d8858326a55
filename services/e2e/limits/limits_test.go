//go:build linux

package limits_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const openPolicy = "version: 1\nname: open\ndefault: allow\n"

// mesh is a mesh with two servers that run the attacker: `attacker`, and `other` with the default limits.
type mesh struct {
	*stack.Process
	t *testing.T
}

// startLimitedMesh starts a mesh whose server `attacker` has the given limits. The parameter more contains additional
// keys of `stdio`. If setup is not empty, it is a shell script that runs in a new mount namespace before the mesh
// starts.
func startLimitedMesh(t *testing.T, limits, more, setup string) *mesh {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := stack.WriteConfig(t, stack.Options{Policy: openPolicy, Servers: fmt.Sprintf(`  attacker: {stdio: {command: [%[1]q], env: {%[2]s: "server"}, limits: {%[3]s}%[4]s}, timeout: 40s}
  other: {stdio: {command: [%[1]q], env: {%[2]s: "server"}}, timeout: 40s}`, self, attackerVariable, limits, more)})
	if setup != "" {
		if os.Getuid() != 0 {
			t.Skip("only root can mount file systems for this test")
		}
		if err := os.MkdirAll(s.Dir+"/data", 0o700); err != nil {
			t.Fatal(err)
		}
		s.Wrapper = []string{"unshare", "-m", "/bin/sh", "-c", setup + ` && exec "$@"`, "sh"}
		s.Env = append(s.Env, "DATA="+s.Dir+"/data")
	}
	p := stack.Start(t, s)
	t.Cleanup(func() { _ = p.Stop(t) }) // the cgroups are removed only if the mesh stops normally
	return &mesh{p, t}
}

func (m *mesh) status() string {
	m.t.Helper()
	return stack.Run(m.t, stack.Command{Args: []string{"status", "--config", m.Config, "--addr", m.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}).Stdout
}

func (m *mesh) attack(kind string) stack.Response {
	m.t.Helper()
	return stack.Connect(m.t, m.MCP("attacker"), stack.AgentToken).Call("attack", `{"kind":"`+kind+`"}`)
}

func (m *mesh) checkOthersServe() {
	m.t.Helper()
	c := stack.Connect(m.t, m.MCP("other"), stack.OtherToken)
	for range 20 {
		if got := c.Call("fine", "{}"); got.Text(m.t) != "fine" || got.IsError(m.t) {
			m.t.Fatalf("a call of another server returns %s", got.Body)
		}
	}
}

// countProcesses returns the number of processes on this machine whose command lines match the regular expression in
// the parameter text.
func countProcesses(text string) int {
	out, _ := exec.Command("pgrep", "-c", "-f", text).Output()
	n := 0
	_, _ = fmt.Sscan(string(out), &n)
	return n
}

const noCgroups = "mount -t tmpfs none /sys/fs/cgroup"

// enforcements contains the ways in which limits are enforced, each with a setup script: by the kernel's cgroups, or by
// the gateway, which watches the processes.
var enforcements = map[string]string{"cgroup": "", "watched": noCgroups}

// Case X20. A stdio server that starts processes or threads without limit is terminated together with all its
// descendants. No other process is affected.
func TestLimits_ServerThatForksWithoutEndIsEnded(t *testing.T) {
	t.Parallel()
	for way, setup := range enforcements {
		for _, kind := range []string{"fork", "setsid", "double-fork", "threads"} {
			if way == "watched" && (kind == "setsid" || kind == "threads") {
				continue // the tests of package proclimit cover sessions faster, and threads count as processes
			}
			t.Run(way+"/"+kind, func(t *testing.T) {
				m := startLimitedMesh(t, "tasks: 200", "", setup)
				seconds := fmt.Sprintf("61.%d", m.PID()) // the number identifies this attacker's processes on the machine
				m.checkNamesLimit(m.attack(kind+":"+seconds), "tasks")
				m.checkOthersServe()
				m.checkStatus("servers.attacker.stdio.limits.tasks")
				eventually.Within(t, 50*time.Second, "no process is left", func() bool { return countProcesses("^sleep "+seconds+"$") == 0 })
			})
		}
	}
}

// Case X20. A stdio server that allocates memory without limit is terminated, even if one of its descendants allocates
// the memory.
func TestLimits_ServerThatAllocatesWithoutEndIsEnded(t *testing.T) {
	t.Parallel()
	for way, setup := range enforcements {
		for _, kind := range []string{"memory", "grandchild"} {
			if way == "watched" && kind == "memory" {
				continue // the gateway counts a process and its grandchild in the same way
			}
			t.Run(way+"/"+kind, func(t *testing.T) {
				m := startLimitedMesh(t, "memory: 128MiB", "", setup)
				m.checkNamesLimit(m.attack(kind), "memory")
				m.checkOthersServe()
				m.checkStatus("servers.attacker.stdio.limits.memory")
			})
		}
	}
}

// checkNamesLimit checks that a response contains the limit's configuration key.
func (m *mesh) checkNamesLimit(got stack.Response, limit string) {
	m.t.Helper()
	if text := got.Text(m.t); !strings.Contains(text, "servers.attacker.stdio.limits."+limit) {
		m.t.Errorf("the response does not name the limit %s: %s\n%s", limit, got.Body, m.Stderr())
	}
}

func (m *mesh) checkStatus(text string) {
	m.t.Helper()
	if said := m.status(); !strings.Contains(said, text) {
		m.t.Errorf("status does not print %q:\n%s", text, said)
	}
}

// Case X20. A server that was terminated because of a limit is started again only after a pause. Until then, responses
// to calls contain the reason.
func TestLimits_EndedServerStartsAgainAfterAPause(t *testing.T) {
	t.Parallel()
	m := startLimitedMesh(t, "tasks: 200", "", "")
	m.checkNamesLimit(m.attack("fork"), "tasks")
	c := stack.NewClient(t, m.MCP("attacker"), stack.AgentToken)
	resp, err := c.TryPost([]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw-client","version":"1"}}}`))
	if err != nil || !strings.Contains(string(resp.Body), "limits.tasks") || resp.Decision(t).RetryAfterMs == 0 {
		t.Errorf("a start right after the end returns %s, %v", resp.Body, err)
	}
	eventually.Within(t, 3*time.Minute, "the server serves again", func() bool {
		return stack.NewClient(t, m.MCP("attacker"), stack.AgentToken).Open() == nil
	})
}

// Case X20. `status` and `doctor` report the limits that the kernel does not enforce on this system.
func TestLimits_StatusReportsUnenforcedLimits(t *testing.T) {
	t.Parallel()
	m := startLimitedMesh(t, "", "", noCgroups)
	m.checkStatus("tasks: watched, not limited by the kernel")
	m.checkStatus("memory: watched, not limited by the kernel")
	doctor := stack.Run(t, stack.Command{Args: []string{"doctor", "--config", m.Config, "--addr", m.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}).Stdout
	if !strings.Contains(doctor, "tasks: watched, not limited by the kernel") {
		t.Errorf("doctor does not print the limit:\n%s", doctor)
	}
}

// Case X20. A server starts even if its limits can't be enforced. The test starts a mesh with a restricted /proc, as in
// a container, and another mesh without capabilities, as in a pod whose processes the kernel kills first.
func TestLimits_ServerRunsIfLimitsCannotBeEnforced(t *testing.T) {
	t.Parallel()
	const noCapabilities = noCgroups + ` && echo 1000 > /proc/self/oom_score_adj && set -- setpriv --bounding-set=-all --inh-caps=-all "$@"`
	for where, setup := range map[string]string{
		"little of /proc": noCgroups + " && mount -t tmpfs none /proc/sys",
		"no capabilities": noCapabilities,
	} {
		t.Run(where, func(t *testing.T) {
			m := startLimitedMesh(t, "", "", setup)
			m.checkOthersServe()
			m.checkStatus("tasks: watched, not limited by the kernel")
			if got := m.attack("oom").Text(t); where == "no capabilities" && !strings.Contains(got, "score 1000") {
				t.Errorf("the attack returns %s", got)
			}
		})
	}
}

// Case X20. If memory runs out, the kernel kills stdio servers before the mesh.
func TestLimits_KernelKillsChildrenBeforeTheMesh(t *testing.T) {
	t.Parallel()
	m := startLimitedMesh(t, "", "", "")
	if got := m.attack("oom").Text(t); !strings.Contains(got, "score 800") {
		t.Errorf("the attack returns %s", got)
	}
}
