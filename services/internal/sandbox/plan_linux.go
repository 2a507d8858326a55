package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// plan is what the rules come to here and now. All paths are real: no link is on
// the way.
type plan struct {
	// hidden are files and folders, none of which lies in another.
	hidden []string
	// programs are files that must not be changed, and folders that hold such.
	programs []string
	// above are the folders above those, the highest first, but not the root.
	above []string
	// open are what is reached although it lies in something that is hidden.
	open []opening
	// awaited are the folders in which something may appear that is to be hidden then:
	// the nearest that there are.
	awaited []string
	// watched are paths that may come to name something else.
	watched []watched
	// loose are links on the way to what is hidden that could be replaced, and shared
	// files that are hidden in folders in which a program may write: what is put in the
	// place of one can be reached for a moment.
	loose, shared []string
	// access is what is read only, and what stays writable inside of it, each folder before what is in it.
	access []access
	// links are links on the way to what is read only that could be replaced.
	links []string
}

// watched is a path of the rules, and whether it is a program's, or a link on the way to one of them.
type watched struct {
	path          string
	program, link bool
}

// opening is a file or folder that is reached although it is hidden.
type opening struct {
	path  string
	write bool
}

// newPlan makes a plan.
func newPlan(o *order) (*plan, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	p := new(plan)
	if err := p.openings(o); err != nil {
		return nil, err
	}
	hidden, programs, loose := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, path := range slices.Concat(o.Rules.Secret, o.Rules.Private) {
		p.watched = append(p.watched, watched{path: path})
		add(hidden, loose, path, all)
	}
	for _, path := range o.Rules.Programs {
		p.watched = append(p.watched, watched{path: path, program: true})
		add(programs, loose, path, all)
	}
	p.own(hidden)
	p.fix(programs, hidden, o)
	above := foldersAbove(hidden, programs)
	for _, path := range p.unopened(sockets(o)) {
		p.watched = append(p.watched, watched{path: path})
		hidden[path] = true
	}
	for _, path := range p.unopened(slices.Concat(devices(o.AsRoot), terminals())) {
		hidden[path] = true
	}
	for _, m := range all { // another list of all processes
		if m.kind == "proc" && !isBelow(m.point, "/proc") {
			hidden[m.point] = true
		}
	}
	p.hidden = outermost(hidden)
	p.open = slices.DeleteFunc(p.open, func(op opening) bool { return !p.hides(op.path) })
	p.programs = slices.DeleteFunc(slices.Sorted(maps.Keys(programs)), p.hides)
	p.loose = slices.DeleteFunc(slices.Sorted(maps.Keys(loose)), p.hides)
	p.shared = slices.DeleteFunc(p.shared, func(path string) bool { return p.hides(filepath.Dir(path)) })
	p.readOnly(o, all)
	p.above = slices.Concat(above, foldersAbove(p.accessible()))
	slices.Sort(p.above)
	p.above = slices.DeleteFunc(slices.Compact(p.above), p.hides)
	for _, w := range p.watched {
		if folder := nearest(w.path); folder != w.path && !p.hides(folder) {
			p.awaited = append(p.awaited, folder)
		}
	}
	return p, nil
}

// nearest is a path, where there is something at it, or else the real folder above it
// that is the nearest there is.
func nearest(path string) string {
	if _, err := os.Stat(path); err == nil {
		return path
	}
	for folder := filepath.Dir(path); folder != "/"; folder = filepath.Dir(folder) {
		if real, err := filepath.EvalSymlinks(folder); err == nil {
			return real
		}
	}
	return "/"
}

// own hides whole the folders that hold nothing but what is hidden: what comes to be
// in one of them is hidden too. Other files stand in folders of others'.
func (p *plan) own(hidden map[string]bool) {
	for _, path := range slices.Sorted(maps.Keys(hidden)) {
		folder := filepath.Dir(path)
		if info, err := os.Lstat(path); err != nil || info.IsDir() || hidden[folder] || !canWrite(folder) {
			continue
		}
		entries, err := os.ReadDir(folder)
		others := func(e fs.DirEntry) bool { return !hidden[filepath.Join(folder, e.Name())] }
		if err == nil && folder != "/" && !slices.ContainsFunc(entries, others) {
			hidden[folder] = true
		} else {
			p.shared = append(p.shared, path)
		}
	}
}

// fix puts the folder of a program in the program's place, so that what replaces it
// can't be changed either, where nobody works in that folder.
func (p *plan) fix(programs, hidden map[string]bool, o *order) {
	for _, path := range slices.Sorted(maps.Keys(programs)) {
		folder := filepath.Dir(path)
		inside := func(other string) bool { return isBelow(other, folder) }
		switch busy := slices.ContainsFunc(slices.Collect(maps.Keys(hidden)), inside); {
		case folder == "/" || busy || inside(o.Command.Dir) || o.Rules.Home != "" && inside(o.Rules.Home):
			if canWrite(folder) {
				p.shared = append(p.shared, path)
			}
		default:
			delete(programs, path)
			programs[folder] = true
		}
	}
}

// unopened returns the paths without those that are opened.
func (p *plan) unopened(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		return slices.ContainsFunc(p.open, func(op opening) bool { return isBelow(path, op.path) })
	})
}

// add adds what a path names, wherever it is found.
func add(to, loose map[string]bool, path string, all []mount) {
	real, links, err := follow(path)
	for _, link := range links {
		switch folder := filepath.Dir(link); {
		case filepath.Base(link) == "..data": // Kubernetes replaces the link, and what it leads to
			to[folder] = true
		case canWrite(folder):
			loose[link] = true
		}
	}
	if err != nil {
		return // it is hidden once it is there
	}
	to[real] = true
	for _, other := range aliases(real, all) {
		to[other] = true
	}
}

// openings finds what is to be reached.
func (p *plan) openings(o *order) error {
	add := func(path string, write bool) error {
		real, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", path, err)
		}
		if err := o.Rules.MayOwn(real); err != nil {
			return err
		}
		p.open = append(p.open, opening{real, write})
		return nil
	}
	for _, path := range o.Rules.Read {
		if err := add(path, false); err != nil {
			return err
		}
	}
	for _, path := range o.Rules.Write {
		if err := add(path, true); err != nil {
			return err
		}
	}
	if o.Command.Read != "" {
		if err := add(o.Command.Read, false); err != nil {
			return err
		}
	}
	if o.Command.Own != "" {
		return add(o.Command.Own, true)
	}
	return nil
}

// hides reports whether a path is hidden or lies in what is.
func (p *plan) hides(path string) bool {
	return slices.ContainsFunc(p.hidden, func(h string) bool { return isBelow(path, h) })
}

// opens returns what is reached in something that is hidden.
func (p *plan) opens(hidden string) []opening {
	return slices.DeleteFunc(slices.Clone(p.open), func(op opening) bool { return !isBelow(op.path, hidden) })
}

// foldersAbove returns the folders above all these, the highest first.
func foldersAbove(sets ...map[string]bool) []string {
	above := make(map[string]bool)
	for _, set := range sets {
		for path := range set {
			for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
				above[dir] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(above)) // a folder sorts before what is in it
}

// outermost returns the paths without those that lie in others.
func outermost(paths map[string]bool) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if !slices.ContainsFunc(out, func(o string) bool { return isBelow(path, o) }) {
			out = append(out, path)
		}
	}
	return out
}

// follow returns what a path leads to, and the links on the way.
func follow(path string) (real string, links []string, err error) {
	const most = 255
	todo, real := strings.Split(strings.TrimPrefix(path, "/"), "/"), "/"
	for len(todo) > 0 {
		next := filepath.Join(real, todo[0])
		todo = todo[1:]
		target, err := os.Readlink(next)
		if err != nil {
			if _, err := os.Lstat(next); err != nil {
				return "", links, err
			}
			real = next
			continue
		}
		if links = append(links, next); len(links) > most {
			return "", links, unix.ELOOP
		}
		if filepath.IsAbs(target) {
			real = "/"
		}
		todo = append(strings.Split(strings.Trim(target, "/"), "/"), todo...)
	}
	return real, links, nil
}

// canWrite reports whether this user can replace what is in a folder.
func canWrite(folder string) bool {
	var st unix.Stat_t
	return unix.Access(folder, unix.W_OK) == nil ||
		unix.Stat(folder, &st) == nil && int(st.Uid) == os.Geteuid() && !errors.Is(unix.Access(folder, unix.W_OK), unix.EROFS)
}
