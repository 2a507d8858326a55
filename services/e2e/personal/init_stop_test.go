package personal_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// installer is a program that installs a package before it reads its standard input. If it receives a signal during the
// installation, the package is damaged.
const installer = `#!/bin/sh
trap 'touch "$HOME/damaged"; exit 1' INT TERM
touch "$HOME/begun"
cat > /dev/null
touch "$HOME/installed"
`

// The test sends SIGINT to the process group of `sluice init`, as Ctrl-C at a terminal does. The installation that the
// command has started still finishes.
func TestInit_CtrlCLetsAnInstallationFinish(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write("bin/npx", installer)
	if err := os.Chmod(filepath.Join(h.dir, "bin/npx"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.write(cursorPath, `{"mcpServers": {"installs": {"command": "`+filepath.Join(h.dir, "bin/npx")+`", "args": ["-y", "some-server"]}}}`)
	before := h.read(cursorPath)
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), h.program, "init", "--yes", "cursor")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = h.dir, h.env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(h.dir, name)); return err == nil }
	eventually.Holds(t, "the installation begins", func() bool { return exists("begun") })
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("init ends with %v", err)
	}
	if exists("damaged") || !exists("installed") {
		t.Error("the installation was interrupted")
	}
	for _, want := range []string{"Stopping the servers.", "Stopped: nothing was changed.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "stays as it is") {
		t.Errorf("the output has a verdict on the server:\n%s", &out)
	}
	if h.read(cursorPath) != before {
		t.Error("the file of the client was changed")
	}
}
