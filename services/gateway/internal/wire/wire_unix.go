//go:build unix

package wire

import (
	"net"
	"syscall"
)

// alive tells whether an unused connection can be written to: that its other end
// has neither closed it nor sent anything, which nobody asked for.
func alive(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var quiet bool
	err = raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, err := syscall.Read(int(fd), one[:])
		quiet = err == syscall.EAGAIN
		return true
	})
	return err == nil && quiet
}
