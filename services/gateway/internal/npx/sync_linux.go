package npx

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncFileSystem writes a directory's file system to the disk, so that a power failure leaves no installation with
// empty files.
func syncFileSystem(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
