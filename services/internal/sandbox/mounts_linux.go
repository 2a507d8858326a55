package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	device, root, point, kind string
}

// mounts returns all mounts that this process sees, in the order in which they were mounted.
func mounts() ([]mount, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the list of mounts: %w", err)
	}
	var all []mount
	for line := range strings.Lines(string(raw)) {
		head, tail, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(head), strings.Fields(tail)
		if !ok || len(fields) < 6 || len(kind) == 0 {
			return nil, fmt.Errorf("read the list of mounts: %q", line)
		}
		all = append(all, mount{device: fields[2], root: unescape(fields[3]), point: unescape(fields[4]), kind: kind[0]})
	}
	return all, nil
}

func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// aliases returns the other paths at which a file or directory is visible. A file system can be mounted at several
// paths, as a whole or in part, and a mounted part can be inside the directory.
func aliases(path string, all []mount) []string {
	var home mount
	for _, m := range all {
		if isBelow(path, m.point) && len(m.point) >= len(home.point) {
			home = m
		}
	}
	inner := filepath.Join(home.root, strings.TrimPrefix(path, home.point))
	var found []string
	for _, m := range all {
		if m.device != home.device {
			continue
		}
		switch {
		case isBelow(inner, m.root):
			other := filepath.Join(m.point, strings.TrimPrefix(inner, m.root))
			if other != path && isSame(other, path) {
				found = append(found, other)
			}
		case isBelow(m.root, inner) && !isBelow(m.point, path):
			found = append(found, m.point)
		}
	}
	return found
}

// isSame reports whether two paths are the same file or directory.
func isSame(a, b string) bool {
	one, err1 := os.Lstat(a)
	two, err2 := os.Lstat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

func isMounted(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// clone returns a detached copy of the mounts at a path.
func clone(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return 0, fmt.Errorf("copy the mount of %s: %w", path, err)
	}
	return fd, nil
}

// attach attaches a copy of mounts at a path and closes the descriptor of the copy.
func attach(fd int, path string) error {
	defer unix.Close(fd) //nolint:errcheck // the mount stays after its descriptor was closed
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount over %s: %w", path, err)
	}
	return nil
}

// restrict adds attributes, for example read-only, to a copy of mounts.
func restrict(fd int, attributes uint64) error {
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes})
	if err != nil {
		return fmt.Errorf("restrict a mount: %w", err)
	}
	return nil
}

// remount mounts a copy of a path over the path itself, with additional attributes. A mount point can be neither
// renamed nor removed.
func remount(path string, attributes uint64) error {
	fd, err := clone(path)
	if err != nil {
		return err
	}
	if attributes != 0 {
		if err := restrict(fd, attributes); err != nil {
			return err
		}
	}
	return attach(fd, path)
}
