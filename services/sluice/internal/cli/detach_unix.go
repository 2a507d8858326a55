//go:build unix

package cli

import (
	"os/exec"
	"syscall"
)

// detach makes a command continue when this program ends. Signals that are sent to the client's process group don't
// reach the command.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
