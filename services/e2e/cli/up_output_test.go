package cli_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// The output of `sluice up` suggests commands only if the starter policy is in use. It reports that the agent's token
// has no owner only if that is true.
func TestUp_OutputMatchesTheConfiguration(t *testing.T) {
	t.Parallel()
	const (
		try   = "Try, in another terminal:"
		owner = "The agent's token names no owner, so the holder of the operator's token may approve the agent's calls.\n"
	)
	said := func(dir, name string) string {
		t.Helper()
		s := &stack.Stack{Dir: dir}
		if name != "" {
			s.Config = filepath.Join(dir, name)
		}
		p := stack.Launch(t, s, "--listen", stack.FreeAddr(t), "--grpc", stack.FreeAddr(t))
		eventually.Holds(t, "sluice up says that it is up", func() bool { return strings.Contains(p.Stdout(), "Stop with Ctrl-C.") })
		if err := p.Stop(t); err != nil {
			t.Errorf("stopped with %v", err)
		}
		return p.Stdout()
	}
	dir := stack.WriteFolder(t, map[string]string{
		"policy.yaml": goodPolicy,
		"demo.yaml":   configurationText("raw: {", "demo: {"),
		"own.yaml":    "data: elsewhere\npolicies: [policy.yaml]\n",
		"token.yaml":  "data: another\nauth: {tokens: [{name: agent, token: \"" + stack.AgentToken + "\", role: agent}]}\n",
	})
	for name, want := range map[string][2]bool{"": {true, true}, "demo.yaml": {false, false}, "own.yaml": {false, true}, "token.yaml": {false, false}} {
		text := said(dir, name)
		if tries, owned := strings.Contains(text, try), strings.Contains(text, owner); tries != want[0] || owned != want[1] {
			t.Errorf("%q: commands to try: %v, the token has no owner: %v, want %v\n%s", name, tries, owned, want, text)
		}
	}
	stack.ReplaceInFile(t, filepath.Join(dir, ".sluice", "policies", "starter.yaml"), "action: deny", "action: allow")
	if text := said(dir, ""); strings.Contains(text, try) {
		t.Errorf("commands to try with another policy:\n%s", text)
	}
}
