//go:build unix

package httpclient

import (
	"net"
	"syscall"
)

// watch returns a function that reports whether an idle connection is still usable. A connection is usable if the
// server has neither closed it nor sent unexpected bytes. Only one goroutine at a time may call the function.
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
