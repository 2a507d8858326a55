package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const misnamed = `version: 1
name: misnamed
default: deny
tools:
  raw__echo: {action: deny}
  not_there: {action: deny}
rules:
  - {name: elsewhere, match: {server: rwa}, action: deny}
  - {name: r, match: {server: raw}, action: allow}
`

// `policy lint`, `config check` and `doctor` warn about a name in a policy that matches nothing. Before the mesh is
// started for the first time, they warn about an unknown server and about a tool name that is valid only at /mcp. After
// the gateway has listed the server's tools, they also warn about an unknown tool.
func TestPolicyNames_UnknownNamesAreWarnedAbout(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: misnamed})
	early := []string{`:8:39: `, `rules[0].match.server: no configured server is called "rwa"; did you mean "raw"?`, `:5:3: `, `"raw__echo" is a tool's name at /mcp`}
	late := `tools.not_there: no tool called "not_there" was listed by raw`
	commands := [][]string{{"policy", "lint", s.Policy, "--config", s.Config}, {"config", "check", "--config", s.Config}}
	for _, command := range commands {
		ran := stack.Run(t, stack.Command{Args: command})
		stack.CheckCommand(t, ran, 0, ran.Stdout, early...)
		if strings.Contains(ran.Stdout, "not_there") {
			t.Errorf("%v warns about a tool of a server that was never listed:\n%s", command, ran.Stdout)
		}
	}
	p := stack.Start(t, s)
	doctor := stack.Command{Args: []string{"doctor", "--config", s.Config, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}
	eventually.Holds(t, "doctor warns about the tool", func() bool { return strings.Contains(stack.Run(t, doctor).Stdout, late) })
	for range 2 { // while the mesh runs, and after it was killed
		for _, command := range commands {
			ran := stack.Run(t, stack.Command{Args: command})
			stack.CheckCommand(t, ran, 0, ran.Stdout, append(early, late)...)
		}
		p.Kill()
	}
}

func TestConfigCheck_ReportsMissingPolicies(t *testing.T) {
	t.Parallel()
	const server = "servers:\n  a: {http: {url: \"http://127.0.0.1:1/mcp\"}}\n"
	for text, want := range map[string]struct {
		code int
		said string
	}{
		"data: d\n":          {0, "policy        none: `sluice up` creates starter policies in "},
		"data: d\n" + server: {1, "no policies are configured, so every call would be refused: name files or folders under `policies`"},
		"data: d\ntls: {dir: d}\nroles: {policy: {listen: \"127.0.0.1:0\", addr: \"127.0.0.1:1\"}}\n" + server: {
			0, "no policies are configured, so the policy role does not start with this file",
		},
	} {
		dir := stack.WriteFolder(t, map[string]string{"c.yaml": text})
		ran := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", "c.yaml"}, Dir: dir})
		stack.CheckCommand(t, ran, want.code, ran.Stdout+ran.Stderr, want.said)
	}
}
