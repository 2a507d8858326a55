package sandbox

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// watchLinks adds to the plan the symbolic links that are on the paths to hidden or read-only files. The sandbox mounts
// each link over itself. If a link is replaced from outside the sandbox, the sandbox mounts the new link over itself,
// too. The mounts also prevent the program from renaming the directories above the links.
func (p *plan) watchLinks() {
	links := make(map[string]bool)
	for _, link := range slices.Concat(p.replaceableLinks, p.links) {
		if !p.hides(link) {
			links[link] = true
			p.watched = append(p.watched, watched{path: link, link: true})
		}
	}
	p.above = append(p.above, slices.DeleteFunc(foldersAbove(links), p.hides)...)
	slices.Sort(p.above)
	p.above = slices.Compact(p.above)
}

// pinLinks mounts links over themselves, because a mount point can be neither renamed nor removed. If the kernel does
// not support this for a link, the link stays in the plan, and the report lists it.
func (p *plan) pinLinks() {
	held := func(link string) bool { return !p.hides(link) && pinLink(link) == nil }
	p.replaceableLinks, p.links = slices.DeleteFunc(p.replaceableLinks, held), slices.DeleteFunc(p.links, held)
}

// pinLink mounts a link over itself, unless it is already a mount point. It returns nil if the path is missing or no
// longer a link. In these cases, another path of the plan covers what has replaced the link.
func pinLink(link string) error {
	info, err := os.Lstat(link)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode()&os.ModeSymlink == 0 || isMounted(link) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = remount(link, 0); errors.Is(err, unix.ENOENT) { // the link was removed
		return nil
	}
	return err
}
