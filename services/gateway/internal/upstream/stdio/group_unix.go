//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork says whether this system can end a process together with everything that it started.
const groupsWork = true

// signalGroup sends a signal to the group that p leads.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // it fails only if no process is left
}
