package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// look watches the folders of what is to be hidden, and of what is not there the
// nearest that there is. It returns the folders that this user may not list. Twice is once.
func (p *plan) look(fd int) (unseen []string, err error) {
	seen := make(map[string]bool)
	for _, w := range p.watched {
		// What was made in a folder before that was watched is found by looking again.
		for folder, at := "", nearest(filepath.Dir(w.path)); at != folder; at = nearest(filepath.Dir(w.path)) {
			if folder = at; seen[folder] || p.hides(folder) {
				continue
			}
			seen[folder] = true
			_, err := unix.InotifyAddWatch(fd, folder, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
			switch {
			case errors.Is(err, unix.EACCES):
				unseen = append(unseen, folder)
			case err != nil && !errors.Is(err, unix.ENOENT):
				return nil, fmt.Errorf("watch %s: %w", folder, limitOfInotify(err))
			}
		}
	}
	return unseen, nil
}

// watch hides again what is replaced: a mount goes with the file that it is mounted
// over, such as one that an editor puts another in the place of. What goes just while
// it is hidden is looked for again at once. Where something can't be hidden any more,
// the launcher ends, and with it the program; so it does where it is told of nothing more.
func (p *plan) watch() {
	wakes := make([]byte, 4<<10)
	for {
		// First, so that what comes while it is looked for is seen: a folder may be new.
		if _, err := p.look(noticesFD); err != nil {
			os.Exit(exitLauncher)
		}
		gone := false
		for _, w := range p.watched {
			switch err := p.again(w); {
			case errors.Is(err, unix.ENOENT):
				gone = true
			case err != nil:
				os.Exit(exitLauncher)
			}
		}
		if gone {
			continue
		}
		if n, err := unix.Read(wakeFD, wakes); n == 0 || err != nil && !errors.Is(err, unix.EINTR) {
			os.Exit(exitLauncher)
		}
	}
}

// again mounts over what a path names now, unless that has been done.
func (p *plan) again(w watched) error {
	if w.link {
		_ = holdLink(w.path) // the kernel held the one before
		return nil
	}
	real, err := filepath.EvalSymlinks(w.path)
	if err != nil { // it is not there, or lies in what is hidden
		return nil //nolint:nilerr // there is nothing to hide
	}
	covered := func(hidden string) bool { return isBelow(real, hidden) && isMounted(hidden) }
	switch {
	case isMounted(real), slices.ContainsFunc(p.hidden, covered), slices.ContainsFunc(p.programs, covered), slices.ContainsFunc(p.open, func(op opening) bool { return isBelow(real, op.path) }):
		return nil
	case w.program:
		return again(real, unix.MOUNT_ATTR_RDONLY)
	default:
		return hide(real)
	}
}
