//go:build unix

package cli

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command start in a new process group, so that Ctrl-C at the terminal does not reach the command.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to the process group of a process for which Wait has not returned.
func signalGroup(p *os.Process, s syscall.Signal) error { return syscall.Kill(-p.Pid, s) }
