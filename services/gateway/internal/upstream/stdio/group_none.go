//go:build !unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork says whether this system can end a process together with everything that it started. This system can't, so
// New refuses.
const groupsWork = false

func signalGroup(p *os.Process, _ syscall.Signal) { _ = p.Kill() }

func ownGroup() *syscall.SysProcAttr { return nil }

func awaitExit(p *os.Process) { _, _ = p.Wait() }
