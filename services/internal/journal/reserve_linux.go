package journal

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

type systemFile struct{ *os.File }

// reserve implements [reserver]. The reserved space is not part of the file's size.
func (f systemFile) reserve(size int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, info.Size(), size-info.Size())
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errUnreserved
	}
	return err
}

// freeSpace returns the disk space in bytes that this program can use in a directory. If it is unknown, freeSpace
// returns math.MaxInt64.
func freeSpace(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return math.MaxInt64
	}
	return int64(min(st.Bavail, 1<<40)) * st.Bsize
}
