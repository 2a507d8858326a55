//go:build unix

package notices

import (
	"os/exec"
	"syscall"
)

// killDescendants makes a command's descendants die with the command when its context is done.
func killDescendants(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
