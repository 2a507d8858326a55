//go:build unix

package connlimit

import (
	"net"
	"syscall"
)

// hasUnreadData reports whether the operating system has received data on a connection that this process has not read
// yet.
func hasUnreadData(conn net.Conn) (is bool) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // Control fails only for a closed connection, which has no data
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = err == nil && n > 0
	})
	return is
}
