//go:build unix

package stdio

import (
	"errors"
	"os"
	"syscall"
)

// writePipe writes data to a pipe and returns the number of bytes written. It passes each write to attempt. attempt
// returns the result of the write, or another error if nothing more may be written. While the pipe is full, writePipe
// waits.
func writePipe(pipe *os.File, data []byte, attempt func(write func() (int, error)) (int, error)) (n int, err error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for n < len(data) {
			written, err := attempt(func() (int, error) {
				return syscall.Write(int(fd), data[n:]) // the pipe is non-blocking
			})
			n += max(written, 0)
			switch {
			case errors.Is(err, syscall.EAGAIN):
				return false
			case err != nil && !errors.Is(err, syscall.EINTR):
				failed = err
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
