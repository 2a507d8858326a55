//go:build unix

package stdio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-mesh/sluice/services/internal/proclimit"
)

const (
	// fileCost is the minimum size, in bytes, that counts for a file or directory. Empty files count because file systems
	// limit the number of files.
	fileCost = 4 << 10
	// maxDepth is the maximum nesting depth in a private directory.
	maxDepth = 200
	// measureEvery is the minimum time between two measurements of a directory. The pause after a measurement is also at
	// least measureShare times the duration of the measurement.
	measureEvery = 2 * time.Second
	measureShare = 4
	// smallDrop is the minimum decrease in free space, in bytes, that causes an early measurement.
	smallDrop = 4 << 20
	// A file system is short of space if its free space is less than shortBytes and less than 1/shortShare of its size.
	shortShare = 20
	shortBytes = 1 << 30
)

var errDepth = fmt.Errorf("its private folder has folders nested deeper than %d levels", maxDepth)

// disk measures the size of a process's private directory. It must be used by one goroutine at a time.
type disk struct {
	server *transport
	// dir is the private directory, or "" if the process has no private directory. label is the name of the directory in
	// errors.
	dir     string
	label   string
	started time.Time
	// next is the time by which the next measurement must happen. earliest is the earliest time at which it may happen.
	next, earliest time.Time
	// used is the last measured size, and free is the free space at that time, both in bytes.
	used, free int64
}

func newDisk(s *transport, dir string) *disk {
	if s.cfg.Dir != "" {
		dir = ""
	}
	return diskOf(s, dir, "its private folder")
}

func diskOf(s *transport, dir, label string) *disk {
	return &disk{server: s, dir: dir, label: label, started: time.Now()}
}

// check returns a limit error if the directory is too large or cannot be measured.
func (d *disk) check(now time.Time, group *proclimit.Group) error {
	if d.dir == "" || now.Before(d.earliest) {
		return nil
	}
	free, _ := space(d.dir)
	maxBytes := d.server.cfg.Limits.Disk
	if dropped := d.free - free; now.Before(d.next) && dropped < max((maxBytes-d.used)/2, smallDrop) {
		return nil
	}
	var err error
	d.used, err = measure(d.dir, maxBytes)
	if err == nil && d.used <= maxBytes {
		d.used += deletedSize(d.dir, group)
	}
	d.free = free
	took := time.Since(now)
	d.earliest, d.next = now.Add(took*(measureShare+1)), now.Add(max(measureEvery, took*measureShare*measureShare))
	return d.limitError(err)
}

// limitError returns the limit error for the last measurement, or nil if the directory is within its limit.
func (d *disk) limitError(err error) error {
	maxBytes := d.server.cfg.Limits.Disk
	switch {
	case isCausedByProgram(err):
		return d.server.limitError("disk", fmt.Sprintf("the size of %s can't be measured: %v", d.label, withoutPath(err)))
	case d.used > maxBytes:
		return d.server.limitError("disk", fmt.Sprintf("%s reached its limit of %d MiB, or %d files", d.label, maxBytes>>20, maxBytes/fileCost))
	}
	return nil
}

// isCausedByProgram reports whether the server's process may have caused the error of a measurement. Other errors, such
// as too many open files in the gateway, are ignored.
func isCausedByProgram(err error) bool {
	return errors.Is(err, errDepth) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

func withoutPath(err error) error {
	if number, ok := errors.AsType[unix.Errno](err); ok {
		return number
	}
	return err
}

// admit returns a limit error if the directory is too large to start another process.
func (d *disk) admit() error {
	if d.dir == "" {
		return nil
	}
	var err error
	d.used, err = measure(d.dir, d.server.cfg.Limits.Disk)
	d.free, _ = space(d.dir)
	if isCausedByProgram(err) {
		err = nil // such errors count only while a process runs, because a process that has ended must not prevent the next start
	}
	if err = d.limitError(err); err != nil {
		d.server.log.ErrorContext(context.Background(), "server is not started: its private folder is too large; remove files from it, or raise the limit", "folder", d.dir, "error", err)
	}
	return err
}

// makeRoom removes the files that were created since the process started if the file system is short of space, because
// the mesh and other servers need the space. It keeps older files. It also keeps all files in a directory that
// principals share. A file that has replaced an older file counts as new.
func (d *disk) makeRoom(log *slog.Logger) {
	if d.dir == "" || d.server.cfg.Shared {
		return
	}
	if _, short := space(d.dir); !short {
		return
	}
	log.ErrorContext(context.Background(), "the disk is short of space: the files that the process made in its private folder are removed", "folder", d.dir)
	if err := removeSince(d.server.cfg.WorkRoot, d.dir, d.started); err != nil {
		log.ErrorContext(context.Background(), "the files can't be removed; free space on the disk", "folder", d.dir, "error", err)
	}
}

// space returns the free space of a file system in bytes. Each free inode counts as fileCost additional bytes. short
// reports whether too few bytes or too few inodes are free.
func space(dir string) (free int64, short bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	size := int64(st.Bsize) //nolint:unconvert // the type of Bsize differs on other systems
	bytes, all := int64(st.Bavail)*size, int64(st.Blocks)*size
	short = bytes < min(all/shortShare, shortBytes) || st.Files > 0 && st.Ffree < st.Files/shortShare
	if st.Files > 0 {
		bytes = min(bytes, 1<<50) + int64(min(st.Ffree, 1<<38))*fileCost
	}
	return bytes, short
}

// measure returns the size of a directory in bytes. It stops when the size exceeds maxBytes.
func measure(dir string, maxBytes int64) (used int64, err error) {
	errEnough := errors.New("the folder is larger")
	linked := make(map[uint64]struct{})
	err = walk(dir, func(_ int, _ string, st *unix.Stat_t) error {
		if _, counted := linked[st.Ino]; counted {
			return nil
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			linked[st.Ino] = struct{}{}
		}
		if used += max(st.Blocks*512, fileCost); used > maxBytes {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return used, err
}

// removeSince removes the files in a private directory that were created at the time since or later. It uses the birth
// time, because the file system records it and a process can't change it. If the file system does not report birth
// times, no file is removed. removeSince follows no links on the path from root to the directory, because a process may
// have created them.
func removeSince(root, dir string, since time.Time) error {
	fd, err := openBelow(root, dir)
	if err != nil {
		return err
	}
	_, mount, _ := birthTime(fd, ".")
	return walkOpen(fd, func(fd int, name string, st *unix.Stat_t) error {
		made, in, known := birthTime(fd, name)
		switch {
		case !known || in != mount || made.Before(since):
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			_ = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) // fails if the directory contains older files
		default:
			_ = unix.Unlinkat(fd, name, 0)
		}
		return nil
	})
}

// openBelow opens the directory dir below root. It follows no links on the path from root to dir.
func openBelow(root, dir string) (int, error) {
	inside, err := filepath.Rel(root, dir)
	if err != nil || !filepath.IsLocal(inside) || inside == "." {
		return -1, fmt.Errorf("%s is not a folder below %s", dir, root)
	}
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Open(root, flags, 0)
	for name := range strings.SplitSeq(inside, string(filepath.Separator)) {
		if err != nil {
			return -1, err
		}
		above := fd
		fd, err = unix.Openat(above, name, flags|unix.O_NOFOLLOW, 0)
		_ = unix.Close(above)
	}
	return fd, err
}

// walk calls visit for each entry below a directory. The entries of a directory are visited before the directory
// itself. walk follows no links and does not enter other file systems.
func walk(dir string, visit func(folder int, name string, st *unix.Stat_t) error) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return walkOpen(fd, visit)
}

// walkOpen is like [walk], for an open directory. It closes the directory.
func walkOpen(fd int, visit func(dir int, name string, st *unix.Stat_t) error) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return err
	}
	return walkIn(fd, uint64(st.Dev), 0, visit) //nolint:unconvert // the type of Dev differs on other systems
}

// walkIn visits the entries of an open directory at the given depth. It closes the directory.
func walkIn(fd int, device uint64, depth int, visit func(dir int, name string, st *unix.Stat_t) error) error {
	dir := os.NewFile(uintptr(fd), "folder")
	defer dir.Close() //nolint:errcheck // the directory was only read
	if depth > maxDepth {
		return errDepth
	}
	const batch = 512
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := visitOne(fd, name, device, depth, visit); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			return nil // the error at the end of the directory is io.EOF
		}
	}
}

func visitOne(fd int, name string, device uint64, depth int, visit func(dir int, name string, st *unix.Stat_t) error) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if uint64(st.Dev) != device { //nolint:unconvert // the type of Dev differs on other systems
		return nil
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		inner, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := walkIn(inner, device, depth+1, visit); err != nil {
			return err
		}
	}
	return visit(fd, name, &st)
}

// deletedSize returns the total size, in bytes, of deleted files on the directory's file system that processes in the
// group still have open.
func deletedSize(dir string, group *proclimit.Group) (used int64) {
	var folder unix.Stat_t
	if unix.Stat(dir, &folder) != nil {
		return 0
	}
	const maxNames = 4096
	counted := make(map[uint64]struct{})
	for _, pid := range group.PIDs() {
		fds := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		open, err := os.Open(fds)
		if err != nil {
			continue
		}
		names, _ := open.Readdirnames(maxNames)
		_ = open.Close()
		for _, name := range names {
			var st unix.Stat_t
			if unix.Stat(filepath.Join(fds, name), &st) != nil || st.Nlink != 0 || st.Dev != folder.Dev {
				continue
			}
			if _, known := counted[st.Ino]; !known && st.Mode&unix.S_IFMT == unix.S_IFREG {
				counted[st.Ino] = struct{}{}
				used += st.Blocks * 512
			}
		}
	}
	return used
}
