//go:build unix && !linux

package stdio

import (
	"os"
	"syscall"
)

// ownGroup puts a child at the head of a session, and so of a group, of its own,
// without the terminal that the gateway may have. If the gateway dies
// without a chance to end it, the child sees its standard input end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// awaitExit waits until p has ended. Its status is lost: there is no portable
// way to wait for a process twice.
func awaitExit(p *os.Process) {
	_, _ = p.Wait()
}
