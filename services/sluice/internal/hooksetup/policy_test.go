package hooksetup_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
)

// A command that names sluice could approve the agent's own calls, so each tool that executes a command needs an
// approval for it. Codex patches files with an argument of the same name, which is not a command.
func TestPolicy_CommandsThatNameSluiceNeedApproval(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		tools, err := hosttools.Tools(client)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := hooksetup.Policy(client, nil)
		if err != nil {
			t.Fatal(err)
		}
		shells := 0
		for _, tool := range tools {
			_, entry, found := strings.Cut(string(raw), "\n  "+tool.Name+":")
			if !found {
				t.Fatalf("%s has no entry for %s:\n%s", client, tool.Name, raw)
			}
			if !bytes.Contains(tool.Definition, []byte(`"command"`)) || tool.Name == "apply_patch" {
				continue
			}
			shells++
			if !strings.HasPrefix(entry, "\n    action: allow\n    when: '!args.command.contains(\"sluice\")'\n") {
				t.Errorf("the entry of %s %s begins with %.120s", client, tool.Name, entry)
			}
		}
		if shells == 0 {
			t.Errorf("%s has no tool that executes a command", client)
		}
	}
}
