//go:build unix

package wire

import (
	"net"
	"syscall"
)

// watch returns what reports whether an unused connection can be written to: that its other
// end has neither closed it nor sent anything, which nobody asked for. One goroutine at a time
// may ask.
func watch(conn net.Conn) (alive func() bool) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return func() bool { return true }
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	var quiet bool
	var one [1]byte
	look := func(fd uintptr) bool {
		_, err := syscall.Read(int(fd), one[:])
		quiet = err == syscall.EAGAIN
		return true
	}
	return func() bool { return raw.Read(look) == nil && quiet }
}
