package cli

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup makes a command start in a new process group, so that Ctrl-C in the console does not reach the command.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// signalGroup kills a process, because Windows has no signals.
func signalGroup(p *os.Process, _ syscall.Signal) error { return p.Kill() }
