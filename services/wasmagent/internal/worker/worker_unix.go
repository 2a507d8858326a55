//go:build linux || darwin || freebsd

package worker

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketFD is the file descriptor of a worker's connection to the supervisor.
const socketFD = 3

// inheritedConn returns the connection to the supervisor that the process has inherited.
func inheritedConn() (net.Conn, error) {
	file := os.NewFile(socketFD, "worker")
	defer file.Close() //nolint:errcheck // the connection has its own descriptor
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("find the connection to the supervisor: %w", err)
	}
	return conn, nil
}

// connectWorker creates a connection between the supervisor and a command. It returns the supervisor's end, and the
// worker's end, which the command inherits.
func connectWorker(cmd *exec.Cmd) (net.Conn, *os.File, error) {
	pair, err := socketPair()
	if err != nil {
		return nil, nil, fmt.Errorf("make a connection to the worker: %w", err)
	}
	supervisorEnd, workerEnd := os.NewFile(uintptr(pair[0]), "supervisor"), os.NewFile(uintptr(pair[1]), "worker")
	defer supervisorEnd.Close() //nolint:errcheck // the connection has its own descriptor
	conn, err := net.FileConn(supervisorEnd)
	if err != nil {
		_ = workerEnd.Close()
		return nil, nil, fmt.Errorf("make a connection to the worker: %w", err)
	}
	cmd.ExtraFiles = []*os.File{workerEnd}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return conn, workerEnd, nil
}

// socketPair returns two connected sockets that other commands do not inherit. On macOS, a socket can't be created with
// the close-on-exec flag, so a command that another goroutine starts could inherit the socket. To prevent this,
// socketPair holds ForkLock, as package os does.
func socketPair() ([2]int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(pair[0])
		unix.CloseOnExec(pair[1])
	}
	return pair, err
}

// limitResources limits the memory of this process to the given number of bytes, and limits the number of open files.
// It also disables core files.
func limitResources(memory int64) error {
	for _, l := range []struct {
		what int
		most uint64
	}{{unix.RLIMIT_DATA, uint64(memory)}, {unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NOFILE, 64}} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			return fmt.Errorf("limit the worker's resources: %w", err)
		}
	}
	return nil
}
