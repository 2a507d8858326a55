//go:build unix && !linux

package stdio

import (
	"os"
	"syscall"
)

// ownGroup makes a child the leader of a new session, and therefore of a new process group, without the gateway's
// terminal. If the gateway dies without terminating the child, the child's standard input reaches its end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// awaitExit waits until p has ended. The exit status is lost, because there is no portable way to wait for a process
// twice.
func awaitExit(p *os.Process) {
	_, _ = p.Wait()
}
