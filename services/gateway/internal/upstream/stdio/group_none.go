//go:build !unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork is false, because this system cannot kill a process together with all processes that the process has
// started. For this reason, New returns an error.
const groupsWork = false

func signalGroup(p *os.Process, _ syscall.Signal) { _ = p.Kill() }

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(p *os.Process) { _, _ = p.Wait() }
