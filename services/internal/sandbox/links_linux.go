package sandbox

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// watchLinks plans that links on the way to what is hidden or read only are held, and held again after they were
// replaced from outside. The folders above them can't be renamed then.
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

// holdLinks mounts links over themselves: what is a mount can be neither renamed nor removed. Links for which the kernel
// does not do that stay in the plan, whose report names them.
func (p *plan) holdLinks() {
	held := func(link string) bool { return !p.hides(link) && holdLink(link) == nil }
	p.loose, p.links = slices.DeleteFunc(p.loose, held), slices.DeleteFunc(p.links, held)
}

// holdLink mounts a link over itself, unless that was done. What is there no longer, or is no link by now, is no error:
// what replaces it is another path's.
func holdLink(link string) error {
	info, err := os.Lstat(link)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&os.ModeSymlink == 0 || isMounted(link) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = again(link, 0); errors.Is(err, unix.ENOENT) { // it went meanwhile
		return nil
	}
	return err
}
