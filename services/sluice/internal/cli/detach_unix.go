//go:build unix

package cli

import (
	"os/exec"
	"syscall"
)

// detach makes a command continue after this program has exited. Signals to this program's process group don't reach
// the command.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
