package proclimit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// basePrefix is the prefix of the name of a limiter's cgroup. The process id and the limiter's number in the process
// follow.
const basePrefix = "sluice-"

// limiters counts the limiters of this process.
var limiters atomic.Int64

// mainGroup is the cgroup (version 2) into which this process moves, so that the cgroup which it leaves can contain
// other cgroups.
const mainGroup = "sluice-main"

// A controller is one of the kernel's cgroup controllers, `pids` or `memory`.
type controller struct {
	name    string
	version int
	// own is the folder of this process's cgroup, and base that of the cgroup in which groups are created.
	own, base string
}

func (c *controller) number() int {
	if c == nil {
		return 0
	}
	return c.version
}

func (c *controller) dir() string {
	if c == nil {
		return ""
	}
	return c.base
}

// findControllers returns the controllers of this process's cgroups; nil for one that can't be used, with the reason
// in why.
func findControllers(base string) (pids, memory *controller, why []error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, nil, []error{err}
	}
	paths, err := cgroupPaths()
	if err != nil {
		return nil, nil, []error{err}
	}
	pids, noPIDs := findController("pids", base, mounts, paths)
	memory, noMemory := findController("memory", base, mounts, paths)
	return pids, memory, []error{noPIDs, noMemory}
}

func findController(name, base string, mounts map[string]cgroupMount, paths map[string]string) (*controller, error) {
	c := &controller{name: name, version: 1}
	m, mounted := mounts[name]
	path, has := paths[name]
	if !mounted || !has {
		c.version = 2
		m, mounted = mounts[""]
		path, has = paths[""]
	}
	if !mounted || !has {
		return nil, fmt.Errorf("%s: no cgroups are mounted", name)
	}
	inside, err := filepath.Rel(m.root, path)
	if err != nil || !filepath.IsLocal(inside) {
		return nil, fmt.Errorf("%s: this process's cgroup is not in the mounted part", name)
	}
	c.own = filepath.Join(m.point, inside)
	if _, err := os.Stat(filepath.Join(c.own, "cgroup.procs")); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if c.version == 2 && !slices.Contains(strings.Fields(text(c.own, "cgroup.controllers")), name) {
		return nil, fmt.Errorf("%s: the controller is not delegated to this process's cgroup", name)
	}
	if c.version == 1 && name == Memory && number(c.own, "memory.use_hierarchy") != 1 {
		return nil, errors.New("memory: groups in this process's cgroup would escape its limit")
	}
	c.base = filepath.Join(c.own, base)
	return c, nil
}

// cgroupMount is a mounted cgroup hierarchy: root is the part of the hierarchy that is mounted, and point is the mount
// point.
type cgroupMount struct{ root, point string }

// cgroupMounts returns the mounted hierarchies of version 1 by controller, and under "" that of version 2.
func cgroupMounts() (map[string]cgroupMount, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	out := make(map[string]cgroupMount)
	for line := range strings.Lines(string(raw)) {
		before, after, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		const rootField, pointField, least = 3, 4, 5
		if !ok || len(fields) < least || len(kind) < 3 {
			continue
		}
		m := cgroupMount{fields[rootField], fields[pointField]}
		switch kind[0] {
		case "cgroup2":
			out[""] = m
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				out[option] = m
			}
		}
	}
	return out, nil
}

// cgroupPaths returns this process's cgroups of version 1 by controller, and under "" that of version 2.
func cgroupPaths() (map[string]string, error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			out[name] = parts[2]
		}
	}
	return out, nil
}

// begin creates the cgroup in which groups are created, with the limits for all of them together.
func (c *controller) begin(share Limits) error {
	c.sweep()
	if c.version == 2 {
		if err := c.delegate(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := c.make(c.base, share); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	if c.version == 2 {
		if err := put(c.base, "cgroup.subtree_control", "+"+c.name); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// sweep removes cgroups that killed processes left behind. A cgroup with processes in it can't be removed.
func (c *controller) sweep() {
	found, _ := filepath.Glob(filepath.Join(c.own, basePrefix+"[0-9]*"))
	for _, dir := range found {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), basePrefix), "-")
		// A cgroup with this process's id is one of an earlier process, unless this process has created it.
		if _, err := os.Stat("/proc/" + pid); !errors.Is(err, fs.ErrNotExist) && (pid != strconv.Itoa(os.Getpid()) || limiters.Load() > 1) {
			continue
		}
		inner, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		for _, file := range inner {
			_ = os.Remove(filepath.Dir(file))
		}
		_ = os.Remove(dir)
	}
}

// delegate enables this controller for the cgroups below that of this process (version 2). A cgroup with enabled
// controllers may not contain processes, so this process and its children move into mainGroup. If the cgroup contains
// processes of other programs, nothing is changed.
func (c *controller) delegate() error {
	if slices.Contains(strings.Fields(text(c.own, "cgroup.subtree_control")), c.name) {
		return nil
	}
	if text(c.own, "cgroup.type") != "" { // the root has no such file, and may contain processes
		if err := c.moveAside(); err != nil {
			return err
		}
	}
	return put(c.own, "cgroup.subtree_control", "+"+c.name)
}

func (c *controller) moveAside() error {
	all := readPIDs(c.own)
	for _, pid := range all {
		if !descends(pid, os.Getpid()) {
			return errors.New("this process's cgroup holds other programs' processes, too: start the mesh in one of its own, such as with systemd's Delegate=yes")
		}
	}
	if len(all) == 0 {
		return nil
	}
	to := filepath.Join(c.own, mainGroup)
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, pid := range all {
		if err := put(to, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// make creates a cgroup with limits. In version 2 the other controller may have created it.
func (c *controller) make(dir string, limits Limits) error {
	if err := os.Mkdir(dir, 0o755); err != nil && (c.version == 1 || !errors.Is(err, fs.ErrExist)) {
		return err
	}
	if c.name == "pids" {
		return put(dir, "pids.max", strconv.Itoa(limits.Tasks))
	}
	most := strconv.FormatInt(limits.Memory, 10)
	if c.version == 1 {
		if err := put(dir, "memory.limit_in_bytes", most); err != nil {
			return err
		}
		_ = put(dir, "memory.memsw.limit_in_bytes", most) // if the kernel counts swap
		return nil
	}
	if err := put(dir, "memory.max", most); err != nil {
		return err
	}
	_ = put(dir, "memory.swap.max", "0") // if there is swap
	if dir != c.base {                   // otherwise all servers would be ended
		_ = put(dir, "memory.oom.group", "1")
	}
	return nil
}

// kills returns how many processes of a cgroup the kernel has ended because of memory.
func (c *controller) kills(dir string) int64 {
	if c.version == 1 {
		return counter(dir, "memory.oom_control", "oom_kill")
	}
	return counter(dir, "memory.events", "oom_kill")
}

// put writes to a file of a cgroup.
func put(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

func text(dir, file string) string {
	raw, _ := os.ReadFile(filepath.Join(dir, file)) // an unreadable file counts as empty
	return string(raw)
}

// number reads a file that contains one number: 0 if it contains none, and the highest number for `max`.
func number(dir, file string) int64 {
	said := strings.TrimSpace(text(dir, file))
	if said == "max" {
		return 1<<63 - 1
	}
	n, _ := strconv.ParseInt(said, 10, 64)
	return n
}

// counter reads the line `key n` of a file.
func counter(dir, file, key string) int64 {
	lines := bufio.NewScanner(bytes.NewReader([]byte(text(dir, file))))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), key+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

func readPIDs(dir string) []int {
	var out []int
	for word := range strings.FieldsSeq(text(dir, "cgroup.procs")) {
		if pid, err := strconv.Atoi(word); err == nil {
			out = append(out, pid)
		}
	}
	return out
}
