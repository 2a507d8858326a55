//go:build unix

package door

import (
	"net"
	"syscall"
)

// waiting reports whether something can be read from a connection of the system's.
func waiting(conn net.Conn) (is bool) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // one that is closed has nothing to say
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = err == nil && n > 0
	})
	return is
}
