package servers_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// If the program of a stdio server is missing, `config check` and `up` warn about it before the first call. Neither of
// them fails, because the program may be installed later.
func TestStdio_MissingProgramIsWarnedAbout(t *testing.T) {
	t.Parallel()
	s := stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy, Servers: `  gone: {stdio: {command: [a-program-that-nobody-has]}}
  moved: {stdio: {command: [/nowhere/at/all]}}
  there: {stdio: {command: [sh, -c, "exit 0"]}}
  folder: {stdio: {command: [sh], dir: nowhere}}`})
	warnings := []string{
		`servers.folder can't be started here: enter its folder: stat ` + filepath.Join(s.Dir, "nowhere"),
		`servers.gone can't be started here: find the program "a-program-that-nobody-has": it is in no folder of PATH=`,
		`servers.moved can't be started here: find the program: stat /nowhere/at/all`,
	}
	checked := stack.Run(t, stack.Command{Args: []string{"config", "check", "--config", s.Config}})
	stack.CheckCommand(t, checked, 0, checked.Stdout, warnings...)
	up := stack.Start(t, s)
	for _, want := range warnings {
		if log := strings.ReplaceAll(up.Stderr(), `\"`, `"`); !strings.Contains(log, want) {
			t.Errorf("up does not log %q:\n%s", want, log)
		}
	}
	for name, said := range map[string]string{"config check": checked.Stdout, "up": up.Stderr()} {
		if strings.Contains(said, "servers.there") {
			t.Errorf("%s warns about a program that exists:\n%s", name, said)
		}
	}
}
