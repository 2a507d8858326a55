package cli

import (
	"os/exec"
	"syscall"
)

// detachedProcess is DETACHED_PROCESS, which starts a process without a console.
const detachedProcess = 0x00000008

// detach makes a command continue after this program has exited.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP | detachedProcess}
}
