package npx

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncFileSystem writes all changes in a directory's file system to the disk. Otherwise a power failure could leave an
// installation with empty files.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
