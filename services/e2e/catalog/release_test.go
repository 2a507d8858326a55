package catalog_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// changedLibrary returns the tools of libraryTools with two changed descriptions, followed by the tools in the
// parameter more.
func changedLibrary(more ...string) string {
	return strings.Replace(strings.Replace(libraryTools(more...), "Gets a note.", "Gets a note by its id.", 1), "Lists all notes.", "Lists all notes, the newest first.", 1)
}

// A new release of a server changes its tool definitions. The log, `status` and `doctor` report this, and the agent is
// notified. One command accepts the definitions that the operator was shown, but it accepts neither later definitions
// nor flagged ones.
func TestCatalog_ReleaseIsReportedAndAcceptedAsShown(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, libraryTools())
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: stack.OpenPolicy})
	p := stack.Start(t, s)
	run := func(token string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: append(args, "--config", s.Config, "--addr", p.GRPC), Env: []string{"SLUICE_URL=" + p.URL, "SLUICE_TOKEN=" + token, "SLUICE_AGENT_TOKEN=" + stack.AgentToken},
		})
	}
	operator := func(args ...string) stack.CommandResult { return run(stack.OperatorToken, args...) }
	// waits lists the server's tools as the agent, repeatedly, until n tool definitions wait for the operator to accept
	// them.
	waits := func(n int) {
		t.Helper()
		want := fmt.Sprintf("%d definitions of tools are new or have changed", n)
		eventually.Within(t, 3*time.Minute, want, func() bool {
			run(stack.AgentToken, "tools", "raw")
			return strings.Contains(operator("status").Stdout, want)
		})
	}
	eventually.Holds(t, "the server was listed", func() bool {
		run(stack.AgentToken, "tools", "raw")
		return run(stack.AgentToken, "call", "raw", "get_note").Code == 0
	})

	hidden := toolDefinition("whisper", "Reads\u200b a note.")
	up.SetTools(changedLibrary(hidden))
	waits(3)
	status := operator("status")
	stack.CheckCommand(t, status, 0, status.Stdout, "changed raw", "`sluice catalog diff raw` shows them")
	doctor := operator("doctor")
	stack.CheckCommand(t, doctor, 0, doctor.Stdout, "tools of raw", "`sluice catalog diff raw` shows what has changed")
	var call stack.CommandResult
	eventually.Holds(t, "the changed tool can't be called in a new session", func() bool {
		call = run(stack.AgentToken, "call", "raw", "get_note")
		return call.Code != 0
	})
	stack.CheckCommand(t, call, 1, call.Stderr, "can't be called until an operator has accepted it", "`sluice catalog diff raw`")
	eventually.Within(t, 3*time.Minute, "the log has a warning with the command to run", func() bool {
		log := regexp.MustCompile(`.*definitions of tools are new or have changed.*`).FindString(p.Stderr())
		return strings.Contains(log, "WARN") && strings.Contains(log, "sluice catalog diff raw") && strings.Contains(log, "get_note")
	})

	shown := operator("catalog", "diff", "raw")
	stack.CheckCommand(t, shown, 0, shown.Stdout, `-  "description": "Gets a note."`, `+  "description": "Gets a note by its id."`, "Lists all notes, the newest first.",
		"flagged: it has characters that are not visible", "1 of these definitions are flagged", "accept the 2 definitions that are not flagged: `sluice catalog accept raw --digest ")
	accept := func(from stack.CommandResult) []string {
		return strings.Fields(regexp.MustCompile("not flagged: `sluice (.*)`").FindStringSubmatch(from.Stdout)[1])
	}
	up.SetTools(changedLibrary(hidden, toolDefinition("purge", "Purges everything.")))
	waits(4)
	stale := operator(accept(shown)...)
	stack.CheckCommand(t, stale, 1, stale.Stderr, "run catalog diff again")
	if again := run(stack.AgentToken, "call", "raw", "get_note"); again.Code != 1 {
		t.Errorf("an outdated digest was accepted: %+v", again)
	}
	shown = operator("catalog", "diff", "raw")
	stack.CheckCommand(t, shown, 0, shown.Stdout, "accept the 3 definitions that are not flagged")
	done := operator(accept(shown)...)
	stack.CheckCommand(t, done, 0, done.Stdout, "3 accepted; revision ", "1 definitions are still pending: `sluice catalog diff raw` shows them")
	stack.CheckCommand(t, run(stack.AgentToken, "call", "raw", "get_note"), 0, "")
	if flagged := run(stack.AgentToken, "call", "raw", "whisper"); flagged.Code != 1 {
		t.Errorf("a flagged tool was accepted with the others: %+v", flagged)
	}
	left := operator("catalog", "diff", "raw")
	if strings.Contains(left.Stdout, "not flagged: ") {
		t.Errorf("one command accepts flagged tools:\n%s", left.Stdout)
	}
	alone := regexp.MustCompile("accept it: `sluice (.*)`").FindStringSubmatch(left.Stdout)
	if len(alone) != 2 {
		t.Fatal(left.Stdout)
	}
	stack.CheckCommand(t, operator(strings.Fields(alone[1])...), 0, "")
	stack.CheckCommand(t, run(stack.AgentToken, "call", "raw", "whisper"), 0, "")
	nothing := operator("catalog", "diff", "raw")
	stack.CheckCommand(t, nothing, 0, nothing.Stdout, "server raw has no pending definition")
	unseen := operator("catalog", "accept", "raw")
	stack.CheckCommand(t, unseen, 1, unseen.Stderr, "server raw has no pending definition")
}
