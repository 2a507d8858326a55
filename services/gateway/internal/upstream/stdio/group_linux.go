package stdio

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownGroup makes a child the leader of its own session, and so of its own group, without the gateway's terminal. The
// kernel kills the child when the gateway dies without ending it. That reaches only the child; its own children see
// their standard input end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until p has ended, and leaves it to be waited for.
func awaitExit(p *os.Process) {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
