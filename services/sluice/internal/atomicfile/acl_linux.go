package atomicfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const aclName = "system.posix_acl_access"

// checkACL refuses a file that has an access control list, because then the group bits of its mode are not the
// permissions of the file's group.
func (f *file) checkACL() error {
	switch _, err := unix.Lgetxattr(f.path, aclName, nil); {
	case err == nil:
		return errors.New("has an access control list, which a new file would not have: edit it yourself")
	case noACL(err):
		return nil
	default:
		return fmt.Errorf("read its access control list: %w", err)
	}
}

// removeACL removes the access control list that a new file inherited from its directory.
func removeACL(out *os.File) error {
	raw, err := out.SyscallConn()
	if err != nil {
		return err
	}
	var removeErr error
	err = raw.Control(func(fd uintptr) { removeErr = unix.Fremovexattr(int(fd), aclName) })
	if err == nil && removeErr != nil && !noACL(removeErr) {
		return fmt.Errorf("remove the access control list of the new file: %w", removeErr)
	}
	return err
}

// noACL reports whether the error means that the file has no access control list.
func noACL(err error) bool {
	return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS)
}
