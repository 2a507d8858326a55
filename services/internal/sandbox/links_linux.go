package sandbox

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// watchLinks adds links on the way to hidden or read-only paths to the plan, so that they are mounted over, again
// after they were replaced from outside. The folders above them can't be renamed then.
func (p *plan) watchLinks() {
	links := make(map[string]bool)
	for _, link := range slices.Concat(p.loose, p.links) {
		if !p.hides(link) {
			links[link] = true
			p.watched = append(p.watched, watched{path: link, link: true})
		}
	}
	p.above = append(p.above, slices.DeleteFunc(foldersAbove(links), p.hides)...)
	slices.Sort(p.above)
	p.above = slices.Compact(p.above)
}

// holdLinks mounts links over themselves: a mount can be neither renamed nor removed. Links for which the kernel does
// not support that stay in the plan, and are reported.
func (p *plan) holdLinks() {
	held := func(link string) bool { return !p.hides(link) && holdLink(link) == nil }
	p.loose, p.links = slices.DeleteFunc(p.loose, held), slices.DeleteFunc(p.links, held)
}

// holdLink mounts a link over itself, unless it is mounted already. A path that is missing, or no longer a link, is
// not an error: its replacement belongs to another path.
func holdLink(link string) error {
	info, err := os.Lstat(link)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&os.ModeSymlink == 0 || isMounted(link) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = again(link, 0); errors.Is(err, unix.ENOENT) { // it was removed meanwhile
		return nil
	}
	return err
}
