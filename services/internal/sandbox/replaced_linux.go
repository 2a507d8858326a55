package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// watchFolders watches the directories that contain the watched paths. If a directory is missing, it watches the
// nearest existing ancestor instead. It returns the directories that this user may not list. It is idempotent.
func (p *plan) watchFolders(fd int) (unseen []string, err error) {
	seen := make(map[string]bool)
	for _, w := range p.watched {
		// The loop repeats the search, because a directory may have been created before its parent directory was
		// watched.
		for dir, at := "", nearest(filepath.Dir(w.path)); at != dir; at = nearest(filepath.Dir(w.path)) {
			if dir = at; seen[dir] || p.hides(dir) {
				continue
			}
			seen[dir] = true
			_, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
			switch {
			case errors.Is(err, unix.EACCES):
				unseen = append(unseen, dir)
			case err != nil && !errors.Is(err, unix.ENOENT):
				return nil, fmt.Errorf("watch %s: %w", dir, withInotifyLimit(err))
			}
		}
	}
	return unseen, nil
}

// rehide hides replaced paths again. A mount disappears with the file over which it is mounted, for example when an
// editor replaces the file. If a path disappears while rehide hides it, rehide immediately checks all paths again. If a
// path can no longer be hidden, or if the wake pipe is closed, the launcher exits, which also kills the program.
func (p *plan) rehide() {
	wakes := make([]byte, 4<<10)
	for {
		// Directories may have been created since the last check. watchFolders is called before the check, so that changes
		// during the check wake the launcher.
		if _, err := p.watchFolders(noticesFD); err != nil {
			os.Exit(exitLauncher)
		}
		vanished := false
		for _, w := range p.watched {
			switch err := p.hideAgain(w); {
			case errors.Is(err, unix.ENOENT):
				vanished = true
			case err != nil:
				os.Exit(exitLauncher)
			}
		}
		if vanished {
			continue
		}
		if n, err := unix.Read(wakeFD, wakes); n == 0 || err != nil && !errors.Is(err, unix.EINTR) {
			os.Exit(exitLauncher)
		}
	}
}

// hideAgain hides the file to which a path now refers, unless this file is already hidden.
func (p *plan) hideAgain(w watched) error {
	if w.link {
		_ = pinLink(w.path) // the kernel supported this for the previous link
		return nil
	}
	real, err := filepath.EvalSymlinks(w.path)
	if err != nil { // the path is missing, or inside a hidden directory
		return nil //nolint:nilerr // there is nothing to hide
	}
	covered := func(hidden string) bool { return isBelow(real, hidden) && isMounted(hidden) }
	switch {
	case isMounted(real), slices.ContainsFunc(p.hidden, covered), slices.ContainsFunc(p.programs, covered), slices.ContainsFunc(p.open, func(op opening) bool { return isBelow(real, op.path) }):
		return nil
	case w.program:
		return remount(real, unix.MOUNT_ATTR_RDONLY)
	default:
		return hide(real)
	}
}
