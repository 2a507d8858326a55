//go:build unix

package localconfig

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupOrOtherWrite is the write permission of the group and of others. If an access control list gives another user
// write access, the group's write permission is also set.
const groupOrOtherWrite = 0o022

// Read returns the content of the file in a directory, or [fs.ErrNotExist] if there is no file. It returns an
// [UntrustedError] if the directory or the file belongs to another user, or if another user may write to it. Read
// checks the file after opening it, so the file can't be replaced between the check and the read. It does not follow a
// symbolic link.
func Read(dir string) ([]byte, error) {
	file, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // the file is only read
	raw, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Name, err)
	}
	if len(raw) > maxBytes {
		return nil, &UntrustedError{Why: fmt.Sprintf("it is larger than %d bytes", maxBytes)}
	}
	return raw, nil
}

// Usable reports whether [Read] would read the file in a directory. It does not read the file.
func Usable(dir string) bool {
	file, err := open(dir)
	return err == nil && file.Close() == nil
}

// open opens the file in a directory, and checks the file and the directory.
func open(folder string) (*os.File, error) {
	dir, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the folder %s: %w", folder, err)
	}
	defer unix.Close(dir) //nolint:errcheck // the directory is only inspected
	fd, err := unix.Openat(dir, Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%s: %w", Name, fs.ErrNotExist)
	case errors.Is(err, unix.ELOOP):
		return nil, &UntrustedError{Why: "it is a symbolic link"}
	case err != nil:
		return nil, &UntrustedError{Why: "it can't be opened: " + err.Error()}
	}
	file := os.NewFile(uintptr(fd), Name)
	if err := checkOwner(dir, fd); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkOwner(dir, file int) error {
	var folder, content unix.Stat_t
	if err := unix.Fstat(dir, &folder); err != nil {
		return fmt.Errorf("read the owner of the folder of %s: %w", Name, err)
	}
	if err := unix.Fstat(file, &content); err != nil {
		return fmt.Errorf("read the owner of %s: %w", Name, err)
	}
	own := uint32(os.Geteuid())
	switch {
	case content.Mode&unix.S_IFMT != unix.S_IFREG:
		return &UntrustedError{Why: "it is not a regular file"}
	case folder.Uid != own:
		return &UntrustedError{Why: fmt.Sprintf("the folder belongs to another user (%d; this command runs as %d)", folder.Uid, own)}
	case content.Uid != own:
		return &UntrustedError{Why: fmt.Sprintf("it belongs to another user (%d; this command runs as %d)", content.Uid, own)}
	case folder.Mode&groupOrOtherWrite != 0:
		return &UntrustedError{Why: fmt.Sprintf("other users may write to the folder (mode %04o)", folder.Mode&0o7777), Do: "run `chmod go-w .`"}
	case content.Mode&groupOrOtherWrite != 0:
		return &UntrustedError{Why: fmt.Sprintf("other users may write to it (mode %04o)", content.Mode&0o7777), Do: "run `chmod go-w " + Name + "`"}
	}
	return nil
}

// isOwnerOnly reports whether a file belongs to this process's user and no other user may write to it.
func isOwnerOnly(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid() && info.Mode().Perm()&groupOrOtherWrite == 0
}
