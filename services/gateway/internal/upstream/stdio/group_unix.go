//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork is true, because this system can kill a process together with its descendants, if they stay in its process
// group.
const groupsWork = true

// signalGroup sends a signal to the process group that p leads.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // fails only if the group has no process
}
