package atomicfile

import (
	"errors"

	"golang.org/x/sys/unix"
)

// exchange swaps two files in one step. It returns errors.ErrUnsupported if the file system can't do this.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}
