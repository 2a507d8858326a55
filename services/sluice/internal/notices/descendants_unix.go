//go:build unix

package notices

import (
	"os/exec"
	"syscall"
)

// killDescendants makes sure that when a command's context is done, the processes that the command has started are
// killed too.
func killDescendants(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
