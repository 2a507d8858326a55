//go:build !unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork is false, because this system can't kill a process together with its descendants. For this reason, New
// returns an error.
const groupsWork = false

func signalGroup(p *os.Process, _ syscall.Signal) { _ = p.Kill() }

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(p *os.Process) { _, _ = p.Wait() }
