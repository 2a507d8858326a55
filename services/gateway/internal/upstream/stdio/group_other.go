//go:build unix && !linux

package stdio

import (
	"os"
	"syscall"
)

// ownGroup makes a child process the leader of a new session without a terminal. The child then also leads a new
// process group. If the gateway dies without terminating the child, the child reads EOF from its standard input.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// awaitExit waits until p has ended. The exit status is lost, because there is no portable way to wait for a process
// twice.
func awaitExit(p *os.Process) {
	_, _ = p.Wait()
}
