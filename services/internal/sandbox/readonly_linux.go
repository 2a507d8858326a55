package sandbox

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// access is a file or directory that is mounted over itself, either to make it read-only, or to make it writable inside
// a read-only directory.
type access struct {
	path  string
	write bool
}

// readOnly adds the read-only paths to the plan. Paths in Rules.Write stay writable, with everything in them. Working
// directories inside read-only directories stay writable, except for read-only paths inside the working directories.
func (p *plan) readOnly(o *order, all []mount) {
	fixed, replaceable := make(map[string]bool), make(map[string]bool)
	for _, path := range o.Rules.ReadOnly {
		addPath(fixed, replaceable, path, all)
	}
	opened := realPaths(o.Rules.Write)
	in := func(path string, dirs []string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return isBelow(path, dir) })
	}
	maps.DeleteFunc(fixed, func(path string, _ bool) bool { return in(path, opened) })
	read := slices.Collect(maps.Keys(fixed))
	for _, path := range slices.Concat(opened, realPaths(o.Rules.Work), realPaths([]string{o.Command.Own})) {
		if !fixed[path] && in(path, read) {
			fixed[path] = false
		}
	}
	for _, path := range slices.Sorted(maps.Keys(fixed)) { // a directory sorts before its content
		if write := !fixed[path]; !p.hides(path) && p.writable(path) != write {
			p.access = append(p.access, access{path, write})
		}
	}
	for _, path := range o.Rules.ReadOnly {
		if real, err := filepath.EvalSymlinks(path); err == nil && p.writable(filepath.Dir(real)) && !p.writable(real) {
			p.watched = append(p.watched, watched{path: path, program: true})
		}
	}
	for link := range replaceable {
		if p.writable(filepath.Dir(link)) && !in(link, opened) {
			p.links = append(p.links, link)
		}
	}
	slices.Sort(p.links)
}

func (p *plan) writable(path string) bool {
	for _, a := range slices.Backward(p.access) { // the innermost directory is the last one
		if isBelow(path, a.path) {
			return a.write
		}
	}
	return true
}

// mountAccess mounts the read-only paths, and the writable paths inside them, over themselves. copies contains copies
// of the writable paths, which the caller must create before any path is mounted.
func (p *plan) mountAccess(copies map[string]int) error {
	for _, a := range p.access {
		var err error
		switch {
		case a.write:
			err = attach(copies[a.path], a.path)
		case a.path == "/": // mounts over the root would not be visible
			err = unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		default:
			err = remount(a.path, unix.MOUNT_ATTR_RDONLY)
		}
		if err != nil {
			return err
		}
	}
	// A mounted copy covers the mounts over the directories inside it. These mounts are needed to prevent the
	// directories from being renamed, so they are mounted again.
	for _, dir := range p.above {
		if _, isCopy := copies[dir]; !isCopy && p.inCopy(dir) {
			if err := remount(dir, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *plan) inCopy(path string) bool {
	return slices.ContainsFunc(p.access, func(a access) bool { return a.write && isBelow(path, a.path) })
}

// copies returns copies of the mounts at the writable paths inside read-only paths.
func (p *plan) copies() (map[string]int, error) {
	out := make(map[string]int)
	for _, a := range p.access {
		if !a.write {
			continue
		}
		fd, err := clone(a.path)
		if err != nil {
			return nil, err
		}
		out[a.path] = fd
	}
	return out, nil
}

// notHeld describes the gaps in the protection of read-only files and directories. For example, the program may be able
// to replace a link to a read-only file. It may also create files next to such a file, for example a module that an
// interpreter finds first.
func (p *plan) notHeld() []string {
	var out []string
	for _, a := range p.access {
		dir := filepath.Dir(a.path)
		if info, err := os.Stat(a.path); err == nil && !info.IsDir() && !a.write && p.writable(dir) && canWrite(dir) {
			out = append(out, fmt.Sprintf("files created next to the program %s, because its folder contains other files", a.path))
		}
	}
	for _, link := range p.links {
		out = append(out, fmt.Sprintf("the link %s to a program, which could be replaced", link))
	}
	return out
}

// realPaths returns the real paths of those paths that exist.
func realPaths(paths []string) []string {
	var out []string
	for _, path := range paths {
		if real, err := filepath.EvalSymlinks(path); path != "" && err == nil {
			out = append(out, real)
		}
	}
	return out
}

func (p *plan) accessible() map[string]bool {
	out := make(map[string]bool)
	for _, a := range p.access {
		out[a.path] = true
	}
	return out
}
