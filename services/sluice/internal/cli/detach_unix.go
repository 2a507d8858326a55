//go:build unix

package cli

import (
	"os/exec"
	"syscall"
)

// detach makes a command stay when this program ends: signals for the client's process group don't reach it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
