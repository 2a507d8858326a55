//go:build unix

package notices

import (
	"os/exec"
	"syscall"
)

// killDescendants makes the end of a command's context also kill the processes that the command has started.
func killDescendants(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
