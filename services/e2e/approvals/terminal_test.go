package approvals_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// runAtTerminal runs `sluice approvals` in a pseudoterminal. When the command asks a question, runAtTerminal types the
// string in the parameter types. In the result, Stderr is the terminal output and Stdout is the standard output.
func runAtTerminal(t *testing.T, f *rawmesh.Mesh, types string, args ...string) stack.CommandResult {
	t.Helper()
	program := stack.Program(t, "sluice")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	person, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer person.Close()
	defer terminal.Close()
	var answer, screen bytes.Buffer
	cmd := exec.CommandContext(ctx, program, append([]string{"approvals", "--addr", f.GRPC}, args...)...)
	cmd.Env = append(os.Environ(), "SLUICE_TOKEN="+stack.OperatorToken)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &answer, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const end = "\x04 that was all \x04"
	ended := make(chan error, 1)
	go func() { // the loop below reads until the end mark, which follows all output
		_ = cmd.Wait() // the exit code is read from ProcessState
		_, err := io.WriteString(terminal, end)
		ended <- err
	}()
	part := make([]byte, 4096)
	for asked := false; !strings.HasSuffix(screen.String(), end); {
		n, err := person.Read(part)
		screen.Write(part[:n])
		if !asked && strings.HasSuffix(screen.String(), "Type yes: ") {
			asked = true
			_, err = io.WriteString(person, types)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return stack.CommandResult{Code: cmd.ProcessState.ExitCode(), Stdout: answer.String(), Stderr: strings.ReplaceAll(strings.TrimSuffix(screen.String(), end), "\r\n", "\n")}
}

// The confirmation prompt states the action. Only the answers "yes" and "y" make the command perform it.
func TestApprovalsCLI_AsksForConfirmationAtATerminal(t *testing.T) {
	t.Parallel()
	const ctrlC, ctrlD = "\x03", "\x04"
	f, _ := startRulesMesh(t, "")
	c := f.Connect(t)
	c.Call("send", `{"to":"ana"}`)
	id := f.AwaitOnePending(t)
	for name, types := range map[string]string{"no": "no\n", "an empty line": "\n", "nearly yes": "yes please\n", "Ctrl-C": ctrlC, "Ctrl-D": ctrlD} {
		for command, question := range map[string]string{"approve": "Approve this call?", "deny": "Deny this call?", "cancel": "Cancel this approval?"} {
			ran := runAtTerminal(t, f, types, command, id)
			stack.CheckCommand(t, ran, 1, ran.Stderr, question+" Type yes: ", "\nsluice: nothing was decided\n")
			if !strings.Contains(ran.Stdout, `"to": "ana"`) || strings.Contains(ran.Stderr, "context canceled") {
				t.Errorf("%s at %s: %+v", name, command, ran)
			}
		}
	}
	f.AwaitState(t, id, "pending")
	json := runAtTerminal(t, f, "no\n", "approve", id, "-o", "json")
	stack.CheckCommand(t, json, 1, json.Stderr, `"to": "ana"`, "Approve this call? Type yes: ", "\nsluice: nothing was decided\n")
	if json.Stdout != "" {
		t.Errorf("the JSON output is %q", json.Stdout)
	}
	f.AwaitState(t, id, "pending")
	json = runAtTerminal(t, f, "yes\n", "approve", id, "-o", "json")
	stack.CheckCommand(t, json, 0, json.Stderr, "Approve this call? Type yes: ")
	if a := stack.DecodeOutput[rawmesh.Approval](t, json); a.State != "approved" {
		t.Errorf("the approval is %+v", a)
	}
	sure := runAtTerminal(t, f, "", "cancel", id, "--yes")
	stack.CheckCommand(t, sure, 0, sure.Stdout, id+" is cancelled\n")
	if strings.Contains(sure.Stderr, "Type yes") {
		t.Errorf("with --yes the command asks: %s", sure.Stderr)
	}
}
