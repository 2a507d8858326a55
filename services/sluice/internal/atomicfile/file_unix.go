//go:build unix

package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner refuses a file that belongs to another user or has several hard links. It stores the file's group in f.
func (f *file) checkOwner(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner is not known")
	}
	if int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to another user (%d): run the command as this user, or edit the file yourself", stat.Uid)
	}
	if stat.Nlink > 1 {
		return fmt.Errorf("has %d hard links, and replacing it would separate them: edit the file yourself", stat.Nlink)
	}
	f.gid = int(stat.Gid)
	return nil
}

// ownedByProcess reports whether a file belongs to the user of this process.
func ownedByProcess(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
