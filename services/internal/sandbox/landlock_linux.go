package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// These are versions of Landlock. Since version abiFiles, files can be neither truncated nor moved to another directory
// without permission. The names of the other constants describe what was added in these versions.
const (
	abiFiles       = 3
	abiTCP         = 4
	abiScopes      = 6
	abiSocketPaths = 9
)

// enterLandlock restricts this process, so that it can access all files except those that the rules hide.
func enterLandlock(o *order) (Report, error) {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return Report{}, fmt.Errorf("get its version: %w", err)
	}
	if version < abiFiles {
		return Report{}, fmt.Errorf("its version is %d, and at least %d is required", version, abiFiles)
	}
	p, err := newPlan(o)
	if err != nil {
		return Report{}, err
	}
	w := ruleSet{plan: p}
	defer w.close()
	if err := p.makeCaches(o); err != nil {
		return Report{}, err
	}
	if err := w.folder("/"); err != nil {
		return Report{}, err
	}
	for _, op := range p.open {
		if err := w.allow(op.path, op.write); err != nil {
			return Report{}, err
		}
	}
	all := landlock.V11.BestEffort()
	if err := all.RestrictPaths(w.rules...); err != nil {
		return Report{}, err
	}
	if err := all.RestrictScoped(); err != nil {
		return Report{}, err
	}
	if o.Rules.NoNetwork {
		if err := all.RestrictNet(); err != nil {
			return Report{}, err
		}
	}
	report := byVersion(version, o.Rules.NoNetwork)
	report.NotEnforced = append(report.NotEnforced, p.notHeld()...)
	if err := protectLimits(); err != nil {
		report.NotEnforced = append(report.NotEnforced, fmt.Sprintf("%s (%v)", partLimits, err))
	} else {
		report.Enforced = append(report.Enforced, partLimits)
	}
	return report, nil
}

// byVersion returns a report of the parts of the rules that the given version of Landlock enforces.
func byVersion(version int, noNetwork bool) Report {
	r := Report{By: string(byLandlock), Enforced: []string{partContents, partPrograms, partTracing}, NotEnforced: []string{partMetadata, partListing, partPriorities}}
	since := func(first int, what string) {
		if version >= first {
			r.Enforced = append(r.Enforced, what)
		} else {
			r.NotEnforced = append(r.NotEnforced, what)
		}
	}
	since(abiScopes, partSignals)
	since(abiScopes, partAbstractSockets)
	since(abiSocketPaths, partSockets)
	if noNetwork {
		since(abiTCP, partTCP)
		r.NotEnforced = append(r.NotEnforced, partDatagrams)
	}
	return r
}

// makeCaches creates the cache directories of common programs if programs in the sandbox could not create them.
func (p *plan) makeCaches(o *order) error {
	home := o.Rules.Home
	real, err := filepath.EvalSymlinks(home)
	if err != nil || !slices.Contains(o.Command.Env, "HOME="+home) || !slices.Contains(p.above, real) {
		return nil //nolint:nilerr // the directory is not the program's home, or does not exist
	}
	for _, name := range []string{".npm", ".cache", ".config", ".local"} {
		if err := os.Mkdir(filepath.Join(real, name), 0o700); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, os.ErrPermission) && !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("make a cache: %w", err)
		}
	}
	return nil
}

// ruleSet collects Landlock rules. Each rule allows access to a path.
type ruleSet struct {
	plan  *plan
	rules []landlock.Rule
	files []int
}

// folder allows access to everything in a directory except for hidden paths. If the directory contains a hidden path,
// files that are created directly in it later are not accessible. The directory itself can't be listed if that would
// also allow listing a hidden directory.
func (w *ruleSet) folder(path string) error {
	if !w.holdsHidden(path) {
		if err := w.allow(path, false); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrPermission) {
		return nil // the program can't list the directory either
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", path, err)
	}
	for _, entry := range entries {
		child := filepath.Join(path, entry.Name())
		switch {
		case slices.Contains(w.plan.hidden, child):
		case w.isAbove(child):
			err = w.folder(child)
		case child == "/proc" || child == "/sys":
			err = w.allow(child, false)
		default:
			err = w.allow(child, !slices.Contains(w.plan.programs, child) && w.plan.writable(child))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isAbove reports whether one Landlock rule for a whole directory is not enough, because some of its content must be
// hidden, or because some of its content must be read-only or writable separately.
func (w *ruleSet) isAbove(dir string) bool {
	inside := func(path string) bool { return isBelow(path, dir) && path != dir }
	return dir != "/proc" && dir != "/sys" && (w.holdsHidden(dir) || slices.ContainsFunc(w.plan.programs, inside) ||
		slices.ContainsFunc(w.plan.access, func(a access) bool { return inside(a.path) }))
}

// holdsHidden reports whether a directory contains a hidden path, or will contain one when a missing path that must be
// hidden is created.
func (w *ruleSet) holdsHidden(dir string) bool {
	in := func(path string) bool { return isBelow(path, dir) }
	return slices.ContainsFunc(w.plan.hidden, in) || slices.ContainsFunc(w.plan.expected, in)
}

// allow allows access to a file, or to a directory and its content. It ignores links. The rule refers to an open
// descriptor, so it applies to the file that was checked.
func (w *ruleSet) allow(path string, write bool) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("allow %s: %w", path, err)
	}
	w.files = append(w.files, fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("allow %s: %w", path, err)
	}
	kind, name := st.Mode&unix.S_IFMT, "/proc/self/fd/"+strconv.Itoa(fd)
	switch {
	case kind == unix.S_IFLNK:
	case kind == unix.S_IFDIR && write:
		w.rules = append(w.rules, landlock.RWDirs(name).WithRefer().WithIoctlDev().WithResolveUnix())
	case kind == unix.S_IFDIR:
		w.rules = append(w.rules, landlock.RODirs(name).WithResolveUnix())
	case write:
		w.rules = append(w.rules, landlock.RWFiles(name).WithIoctlDev().WithResolveUnix())
	default:
		w.rules = append(w.rules, landlock.ROFiles(name))
	}
	return nil
}

func (w *ruleSet) close() {
	for _, fd := range w.files {
		_ = unix.Close(fd) // the descriptor only refers to a file
	}
}
