//go:build unix

package stdio

import (
	"os"
	"syscall"
)

// writePipe writes data to a pipe and returns the number of bytes written. It calls mayBegin before each attempt to write
// the first bytes, also after it has waited because the pipe was full. If mayBegin returns an error, writePipe writes
// nothing and returns that error. mayBegin must not wait.
func writePipe(pipe *os.File, data []byte, mayBegin func() error) (n int, err error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for n < len(data) {
			if n == 0 {
				if failed = mayBegin(); failed != nil {
					return true
				}
			}
			written, err := syscall.Write(int(fd), data[n:]) // the pipe is non-blocking
			switch err {
			case nil:
				n += written
			case syscall.EINTR:
			case syscall.EAGAIN:
				return false
			default:
				failed = os.NewSyscallError("write", err)
				return true
			}
		}
		return true
	})
	if failed != nil {
		return n, failed
	}
	return n, err
}
