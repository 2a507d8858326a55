package cli_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// `sluice doctor` reports each problem of a mesh and what to do about it, and exits with 1 only if there is a problem.
func TestDoctor_NamesEachProblem(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  shut: {http: {url: %q}}\n  away: {http: {url: \"http://127.0.0.1:1/mcp\"}}", up.URL, up.URL),
		Policy:  "version: 1\nname: first\ndefault: deny\nrules:\n  - {name: r, match: {server: [raw, away]}, action: allow}\n",
	})
	env := []string{"SLUICE_CONFIG=" + s.Config, "SLUICE_TOKEN=" + stack.OperatorToken, "SLUICE_AGENT_TOKEN=" + stack.AgentToken}
	code, found := stack.RunDoctor(t, env...)
	if mesh := found["problem mesh"]; code != 1 || !strings.Contains(mesh.Found, "is it up?") {
		t.Errorf("before the mesh is up: %d, %+v", code, found)
	}
	p := stack.Start(t, s)
	env = append(env, "SLUICE_URL="+p.URL, "SLUICE_ADDR="+p.GRPC)
	eventually.Holds(t, "the server is listed", func() bool {
		_, found = stack.RunDoctor(t, env...)
		return found["ok server raw"].Found != ""
	})
	code, found = stack.RunDoctor(t, env...)
	want := []string{"ok mesh", "ok server raw", "problem server away", "warning server shut"}
	if diff := cmp.Diff(want, findingStates(found, "mesh", "server")); code != 1 || diff != "" {
		t.Errorf("%d, found (-want +got):\n%s%+v", code, diff, found)
	}
	if raw := found["ok server raw"]; !strings.Contains(raw.Found, "the agent sees") {
		t.Errorf("the agent's view: %+v", raw)
	}
	if shut := found["warning server shut"]; !strings.Contains(shut.Do, "policy explain") {
		t.Errorf("a server without visible tools: %+v", shut)
	}
	if err := os.WriteFile(s.Policy, []byte("version: 1\nname: first\ndefault: perhaps\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, "a policy that does not load is named", func() bool {
		code, found = stack.RunDoctor(t, env...)
		return code == 1 && strings.Contains(found["problem policy"].Found, "perhaps")
	})
}

// findingStates returns the states and subjects of the findings whose kind is in the list sorts. The result is sorted.
func findingStates(found map[string]stack.DoctorFinding, sorts ...string) (out []string) {
	for key, s := range found {
		for _, sort := range sorts {
			if s.Of == sort || strings.HasPrefix(s.Of, sort+" ") {
				out = append(out, key)
			}
		}
	}
	slices.Sort(out)
	return out
}
