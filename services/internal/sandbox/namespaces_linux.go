package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// unusable contains the attributes of a mount that hides a path. They forbid writing, running programs and opening
// devices.
const unusable = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC

// enterNamespaces applies the rules in the current namespaces. This process must be their first process. The returned
// function hides replaced paths again until this process exits, so it never returns.
func enterNamespaces(o *order) (Report, func(), error) {
	if os.Getpid() != 1 {
		return Report{}, nil, errors.New("it is not the first process of its namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return Report{}, nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return Report{}, nil, fmt.Errorf("mount its own /proc: %w", err)
	}
	p, err := newPlan(o)
	if err != nil {
		return Report{}, nil, err
	}
	p.watchLinks()
	unbound := limitInotify()
	unseen, err := p.watchFolders(noticesFD)
	if err != nil {
		return Report{}, nil, err
	}
	if err := p.mount(o); err != nil {
		return Report{}, nil, err
	}
	report, err := applyOtherRules(o, p)
	for _, dir := range unseen {
		report.NotEnforced = append(report.NotEnforced, fmt.Sprintf("replacements of files in %s, which this user may not list", dir))
	}
	report.NotEnforced = append(report.NotEnforced, unbound...)
	return report, p.rehide, err
}

// mount makes all mounts of the plan.
func (p *plan) mount(o *order) error {
	opened := make(map[string]int)
	for _, op := range p.open {
		fd, err := clone(op.path)
		if err == nil && !op.write {
			err = restrict(fd, unix.MOUNT_ATTR_RDONLY)
		}
		if err != nil {
			return err
		}
		opened[op.path] = fd
	}
	copies, err := p.copies()
	if err != nil {
		return err
	}
	for _, dir := range p.above {
		if err := remount(dir, 0); err != nil {
			return err
		}
	}
	if err := p.mountAccess(copies); err != nil {
		return err
	}
	for _, path := range p.hidden {
		if err := hide(path); err != nil {
			return err
		}
		if err := p.reopen(path, opened); err != nil {
			return err
		}
	}
	for _, path := range p.programs {
		if err := remount(path, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	p.pinLinks()
	if err := ownTerminals(); err != nil {
		return err
	}
	return protectSystem(o.AsRoot)
}

// hide makes a path inaccessible. It mounts an empty directory over a directory, and an unusable file over a file.
func hide(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the path was removed
	}
	if err != nil {
		return fmt.Errorf("hide %s: %w", path, err)
	}
	if info.IsDir() {
		err := unix.Mount("hidden", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k")
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
		return nil
	}
	fd, err := clone(os.DevNull)
	if err != nil {
		return err
	}
	if err := restrict(fd, unusable); err != nil { // devices can't be opened on this mount, and neither can /dev/null
		return err
	}
	return attach(fd, path)
}

// reopen mounts the opened paths inside the empty directory that hides a directory, and then makes the empty directory
// read-only.
func (p *plan) reopen(hidden string, opened map[string]int) error {
	info, err := os.Stat(hidden)
	if err != nil || !info.IsDir() {
		return err
	}
	for _, op := range p.openedIn(hidden) {
		fd, ok := opened[op.path]
		if !ok {
			continue
		}
		delete(opened, op.path)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("open %s: %w", op.path, err)
		}
		if err := makePoint(op.path, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
			return fmt.Errorf("open %s: %w", op.path, err)
		}
		if err := attach(fd, op.path); err != nil {
			return err
		}
	}
	err = unix.MountSetattr(unix.AT_FDCWD, hidden, 0, &unix.MountAttr{Attr_set: unusable})
	if err != nil {
		return fmt.Errorf("hide %s: %w", hidden, err)
	}
	return nil
}

func makePoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o600)
}

// ownTerminals gives the namespace its own terminals. The terminals of other programs have already been hidden.
func ownTerminals() error {
	if len(terminals()) == 0 {
		return nil
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return fmt.Errorf("mount its own terminals: %w", err)
	}
	return nil
}

// protectSystem makes the settings of the system read-only. They include the cgroups, with which processes outside the
// sandbox can be killed. For root, they also include the settings of the kernel.
func protectSystem(asRoot bool) error {
	fixed := []string{"/sys"}
	if asRoot {
		fixed = append(fixed, "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
	}
	for _, path := range fixed {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		if err := remount(path, unix.MOUNT_ATTR_RDONLY); err != nil {
			return err
		}
	}
	return nil
}

// applyOtherRules applies the rules that mounts do not cover. It returns a report of the parts that are enforced.
func applyOtherRules(o *order, p *plan) (Report, error) {
	r := Report{By: string(byNamespaces), Enforced: []string{partFiles, partProcesses, partSockets, partPrograms}}
	if o.Rules.NoNetwork {
		if err := leaveNetwork(); err != nil {
			return r, err
		}
		r.Enforced = append(r.Enforced, partNetwork)
	}
	// Programs in a network namespace can't reach abstract sockets outside it.
	version, err := ll.LandlockGetABIVersion()
	switch {
	case err == nil && version >= abiScopes:
		if err := landlock.V6.RestrictScoped(); err != nil {
			return r, fmt.Errorf("leave abstract sockets: %w", err)
		}
		r.Enforced = append(r.Enforced, partAbstractSockets)
	case o.Rules.NoNetwork:
		r.Enforced = append(r.Enforced, partAbstractSockets)
	default:
		r.NotEnforced = append(r.NotEnforced, partAbstractSockets)
	}
	for _, file := range p.inSharedFolders {
		r.NotEnforced = append(r.NotEnforced, fmt.Sprintf("a replacement of %s, because its folder contains files that are not the mesh's", file))
	}
	for _, link := range p.replaceableLinks {
		r.NotEnforced = append(r.NotEnforced, fmt.Sprintf("the link %s, which could be replaced", link))
	}
	r.NotEnforced = append(r.NotEnforced, p.notHeld()...)
	return r, nil
}

// leaveNetwork moves this thread to a network namespace with only a loopback device.
func leaveNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("leave the network: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // the socket is needed only for ioctl
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	loopback.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("start loopback: %w", err)
	}
	return nil
}
