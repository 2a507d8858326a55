package condition_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

func TestCompile_RefusesPrefixesOfCommands(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`args.command.startsWith("git status")`,
		`!args.command.startsWith("rm")`,
		`args.cmd.startsWith("make")`,
		`args.input.command.startsWith("make")`,
		`args.command >= "git"`,
		`args.command.matches("^git .*$")`,
		`args.command.matches("^git [^;]*$")`,
	} {
		_, err := condition.Compile(text)
		if err == nil || !strings.Contains(err.Error(), "command") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		`args.command in ["make lint", "git status"]`,
		`args.command.matches("^git (status|log -[0-9]{1,3})$")`,
		`args.command.contains("hooks.json")`,
		`args.commander.startsWith("Picard")`,
	} {
		if _, err := condition.Compile(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
