//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// groupsWork says whether this system can end a process with all it started.
const groupsWork = true

// signalGroup sends a signal to the group that p heads.
func signalGroup(p *os.Process, sig syscall.Signal) {
	_ = syscall.Kill(-p.Pid, sig) // fails only where nobody is left
}
