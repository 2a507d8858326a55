package servers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const brokenServers = `  raw: {http: {url: %q}}
  away: {http: {url: "http://127.0.0.1:1/mcp"}}
  ended: {stdio: {command: [sh, -c, "exit 3"]}}
  mute: {http: {url: %q}}`

// One server works. Other servers are unavailable, exit at once, or respond to tools/list without a list. The working
// server's tools are nevertheless listed.
func TestTools_OtherServersAreListedWhenServersAreBroken(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	mute := rawmcp.Start(t, `"none"`)
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf(brokenServers, up.URL, mute.URL), Policy: stack.OpenPolicy})
	p := stack.Start(t, s)
	list := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: append([]string{"tools", "--config", s.Config, "--addr", p.GRPC}, args...),
			Env:  []string{"SLUICE_URL=" + p.URL, "SLUICE_TOKEN=" + stack.AgentToken},
		})
	}
	one := list("raw")
	stack.CheckCommand(t, one, 0, one.Stdout, "SERVER", "raw ")
	tokens := t.TempDir()
	if err := os.Mkdir(filepath.Join(tokens, "tokens"), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, filepath.Join(tokens, "tokens", "agent"), stack.AgentToken)
	stack.WriteFile(t, filepath.Join(tokens, "tokens", "operator"), stack.OperatorToken)
	all := stack.Run(t, stack.Command{
		Args: []string{"tools", "--config", s.Config, "--addr", p.GRPC, "--data", tokens}, Env: []string{"SLUICE_URL=" + p.URL},
	})
	stack.CheckCommand(t, all, 1, all.Stderr, "sluice: the tools of server away are not listed: ", "sluice: the tools of server ended are not listed: ", "`sluice doctor` finds the problem")
	if rest, _ := strings.CutPrefix(one.Stdout, "SERVER"); !strings.Contains(all.Stdout, strings.TrimSpace(strings.Split(rest, "\n")[1])) {
		t.Errorf("the tools of raw are not listed:\n%s", all.Stdout)
	}
	if broken := list("away"); broken.Code != 1 {
		t.Errorf("a broken server by its name: %+v", broken)
	}
}

// `status` and `doctor` report a server as starting until it responds. `doctor` does not exit with code 1 because of
// this server.
func TestDoctor_StartingServerIsNotAProblem(t *testing.T) {
	t.Parallel()
	s := stack.WriteConfig(t, stack.Options{Servers: `  slow: {stdio: {command: [sleep, "600"]}}`, Policy: stack.OpenPolicy})
	p := stack.Start(t, s)
	status := func() string {
		return stack.Run(t, stack.Command{Args: []string{"status", "--config", s.Config, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}).Stdout
	}
	eventually.Holds(t, "status says that it is starting", func() bool { return strings.Contains(status(), "; still starting, for ") })
	code, found := stack.RunDoctor(t, "SLUICE_CONFIG="+s.Config, "SLUICE_ADDR="+p.GRPC, "SLUICE_URL="+p.URL, "SLUICE_TOKEN="+stack.OperatorToken, "SLUICE_AGENT_TOKEN="+stack.AgentToken)
	slow := found["warning server slow"]
	if code != 0 || !strings.Contains(slow.Found, "its program is still starting, for ") || !strings.Contains(slow.Do, "run this command again") {
		t.Errorf("doctor ended with %d: %+v", code, found)
	}
}
