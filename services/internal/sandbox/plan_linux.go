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

// plan is the result of applying the rules to the current files. All its paths are real paths, without links.
type plan struct {
	// hidden contains the hidden files and directories. None of these paths is inside another one.
	hidden []string
	// programs contains files that must not be changed, and directories that contain these files.
	programs []string
	// above contains the directories above the hidden paths and the protected programs, except the root directory. A
	// directory comes before the directories inside it.
	above []string
	// open contains paths that are accessible although they are inside a hidden directory.
	open []opening
	// expected contains the nearest existing directory above each missing path that must be hidden when it is created.
	expected []string
	// watched contains paths that can later refer to a different file.
	watched []watched
	// replaceableLinks contains the links that the program could replace, on the paths to hidden files or programs.
	// inSharedFolders contains hidden files and programs in directories to which a program may write. If such a file is
	// replaced, the new file is not protected for a short time.
	replaceableLinks, inSharedFolders []string
	// access contains the read-only paths, and the writable paths inside them. A directory comes before its content.
	access []access
	// links contains links that the program could replace and that are on the paths to read-only files.
	links []string
}

// watched is a path that must be hidden or read-only, or a link on such a path. program is true if the path must be
// read-only, like the path of a program. link is true if the path is a link.
type watched struct {
	path          string
	program, link bool
}

// opening is a file or directory that is accessible although it is inside a hidden directory.
type opening struct {
	path  string
	write bool
}

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
		addPath(hidden, loose, path, all)
	}
	for _, path := range o.Rules.Programs {
		p.watched = append(p.watched, watched{path: path, program: true})
		addPath(programs, loose, path, all)
	}
	p.hideOwnFolders(hidden)
	p.protectFolders(programs, hidden, o)
	above := foldersAbove(hidden, programs)
	for _, path := range p.unopened(sockets(o)) {
		p.watched = append(p.watched, watched{path: path})
		hidden[path] = true
	}
	for _, path := range p.unopened(slices.Concat(devices(o.AsRoot), terminals())) {
		hidden[path] = true
	}
	for _, m := range all { // /proc of another process namespace shows other processes
		if m.kind == "proc" && !isBelow(m.point, "/proc") {
			hidden[m.point] = true
		}
	}
	p.hidden = outermost(hidden)
	p.open = slices.DeleteFunc(p.open, func(op opening) bool { return !p.hides(op.path) })
	p.programs = slices.DeleteFunc(slices.Sorted(maps.Keys(programs)), p.hides)
	p.replaceableLinks = slices.DeleteFunc(slices.Sorted(maps.Keys(loose)), p.hides)
	p.inSharedFolders = slices.DeleteFunc(p.inSharedFolders, func(path string) bool { return p.hides(filepath.Dir(path)) })
	p.readOnly(o, all)
	p.above = slices.Concat(above, foldersAbove(p.accessible()))
	slices.Sort(p.above)
	p.above = slices.DeleteFunc(slices.Compact(p.above), p.hides)
	for _, w := range p.watched {
		if dir := nearest(w.path); dir != w.path && !p.hides(dir) {
			p.expected = append(p.expected, dir)
		}
	}
	return p, nil
}

// nearest returns path if it exists. Otherwise it returns the real path of the nearest existing ancestor.
func nearest(path string) string {
	if _, err := os.Stat(path); err == nil {
		return path
	}
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return real
		}
	}
	return "/"
}

// hideOwnFolders hides a whole directory if everything in it is hidden, so that files that are created in it later are
// hidden too. It adds hidden files in other directories to inSharedFolders. It ignores directories to which this user
// can't write.
func (p *plan) hideOwnFolders(hidden map[string]bool) {
	for _, path := range slices.Sorted(maps.Keys(hidden)) {
		dir := filepath.Dir(path)
		if info, err := os.Lstat(path); err != nil || info.IsDir() || hidden[dir] || !canWrite(dir) {
			continue
		}
		entries, err := os.ReadDir(dir)
		others := func(e fs.DirEntry) bool { return !hidden[filepath.Join(dir, e.Name())] }
		if err == nil && dir != "/" && !slices.ContainsFunc(entries, others) {
			hidden[dir] = true
		} else {
			p.inSharedFolders = append(p.inSharedFolders, path)
		}
	}
}

// protectFolders protects the whole directory of a protected program instead of only the program, if no program needs
// to write to that directory. A file that later replaces the program in the directory is then protected too.
func (p *plan) protectFolders(programs, hidden map[string]bool, o *order) {
	for _, path := range slices.Sorted(maps.Keys(programs)) {
		dir := filepath.Dir(path)
		inside := func(other string) bool { return isBelow(other, dir) }
		switch busy := slices.ContainsFunc(slices.Collect(maps.Keys(hidden)), inside); {
		case dir == "/" || busy || inside(o.Command.Dir) || o.Rules.Home != "" && inside(o.Rules.Home):
			if canWrite(dir) {
				p.inSharedFolders = append(p.inSharedFolders, path)
			}
		default:
			delete(programs, path)
			programs[dir] = true
		}
	}
}

func (p *plan) unopened(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		return slices.ContainsFunc(p.open, func(op opening) bool { return isBelow(path, op.path) })
	})
}

// addPath adds a path from the rules, and all other paths at which the same file is visible, to the first set. It adds
// those links on the path that this user can replace to the second set.
func addPath(to, loose map[string]bool, path string, all []mount) {
	real, links, err := follow(path)
	for _, link := range links {
		switch dir := filepath.Dir(link); {
		case filepath.Base(link) == "..data": // Kubernetes replaces this link and its target
			to[dir] = true
		case canWrite(dir):
			loose[link] = true
		}
	}
	if err != nil {
		return // the path is hidden when it appears
	}
	to[real] = true
	for _, other := range aliases(real, all) {
		to[other] = true
	}
}

// openings collects the paths that must stay accessible even if they are inside hidden directories.
func (p *plan) openings(o *order) error {
	add := func(path string, write bool) error {
		real, err := filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", path, err)
		}
		if err := o.Rules.CheckAccess(real); err != nil {
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

// hides reports whether the plan hides a path or a directory that contains it.
func (p *plan) hides(path string) bool {
	return slices.ContainsFunc(p.hidden, func(h string) bool { return isBelow(path, h) })
}

func (p *plan) openedIn(hidden string) []opening {
	return slices.DeleteFunc(slices.Clone(p.open), func(op opening) bool { return !isBelow(op.path, hidden) })
}

// foldersAbove returns the directories above all paths in the sets. A directory comes before the directories inside it.
func foldersAbove(sets ...map[string]bool) []string {
	above := make(map[string]bool)
	for _, set := range sets {
		for path := range set {
			for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
				above[dir] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(above)) // a directory sorts before its content
}

// outermost returns the paths that are not inside any of the other paths.
func outermost(paths map[string]bool) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if !slices.ContainsFunc(out, func(o string) bool { return isBelow(path, o) }) {
			out = append(out, path)
		}
	}
	return out
}

// follow returns the real path to which a path leads, and the links on the path.
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

// canWrite reports whether this user can replace files in a directory.
func canWrite(dir string) bool {
	var st unix.Stat_t
	return unix.Access(dir, unix.W_OK) == nil ||
		unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid() && !errors.Is(unix.Access(dir, unix.W_OK), unix.EROFS)
}
