package hooksetup_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

// The hook is changed so that it applies to fewer calls, or so that calls run if the hook fails. Faults describes the
// change, and a second install repairs the hook.
func TestInstall_RepairsAHookThatLetsCallsPass(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		for change, want := range map[[2]string]string{
			{`[{"hooks"`, `[{"matcher":"NoSuchTool","hooks"`}: `has the additional member "matcher"`,
			{`[{"hooks"`, `[{"matcher":{},"hooks"`}:           `has the additional member "matcher"`,
			{`"timeout":3`, `"async":true,"timeout":3`}:       `has the additional member "async"`,
			{`"timeout":3`, `"if":"Bash(ls)","timeout":3`}:    `has the additional member "if"`,
			{`"timeout":3`, `"timeout":1,"asyncTimeout":3`}:   `has another "timeout" than 3`,
			{`"timeout":3`, `"late":3`}:                       `has no "timeout"`,
			{`"type":"command"`, `"type":"prompt"`}:           `has another "type" than command`,
			{`"onFailure":"block"`, `"onFailure":"continue"`}: `has another "onFailure" than block`,
			{`,"onFailure":"block"`, ``}:                      `has no "onFailure"`,
		} {
			if strings.Contains(change[0], "onFailure") && client != "claude-code" {
				continue
			}
			synctest.Test(t, func(t *testing.T) { checkRepaired(t, client, change, want) })
		}
	}
}

// checkRepaired replaces change[0] with change[1] in a client's settings that contain the hook. Then it checks that
// Install repairs the settings.
func checkRepaired(t *testing.T, client string, change [2]string, want string) {
	t.Helper()
	target, data := newTarget(t, client, "{}")
	target.Config = "/c"
	install(t, target, data, program)
	good := content(t, target.Path)
	checkFaults(t, target.Faults, "")
	compact := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(good, "\n", ""), "  ", ""), `": `, `":`)
	compact = strings.ReplaceAll(strings.ReplaceAll(compact, ", ", ","), "{ ", "{")
	bad := strings.Replace(compact, change[0], change[1], 1)
	if bad == compact {
		t.Fatalf("%s: %s is not in %s", client, change[0], compact)
	}
	if err := os.WriteFile(target.Path, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	checkFaults(t, target.Faults, want)
	if !install(t, target, data, program) {
		t.Errorf("%s: Install leaves %s", client, bad)
	}
	checkFaults(t, target.Faults, "")
	checkSame(t, good, content(t, target.Path))
}

// checkFaults checks that one of the faults contains a fragment. If the fragment is empty, it checks that there is no
// fault.
func checkFaults(t *testing.T, faults func() ([]string, error), fragment string) {
	t.Helper()
	got, err := faults()
	found := slices.ContainsFunc(got, func(fault string) bool { return strings.Contains(fault, fragment) })
	if err != nil || found != (fragment != "") {
		t.Errorf("the faults are %q, %v, want %q", got, err, fragment)
	}
}

// The settings contain two items with Sluice's hook, and one of them is the item that Install writes. Faults reports no
// fault, because the second item does no harm.
func TestFaults_AreThoseOfTheBestItem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		target, data := newTarget(t, "claude-code", `{"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "lint"}]}]}}`)
		install(t, target, data, program)
		narrow := `"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "sluice hook claude-code"}]}, {`
		text := strings.Replace(content(t, target.Path), `"PreToolUse": [{`, narrow, 1)
		if err := os.WriteFile(target.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		checkFaults(t, target.Faults, "")
		checkRegistered(t, target, program)
	})
}
