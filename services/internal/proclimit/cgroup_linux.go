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

// basePrefix is the prefix of the name of a limiter's cgroup. The rest of the name consists of the process id and the
// number of the limiter in the process.
const basePrefix = "sluice-"

// limiters counts the limiters of this process.
var limiters atomic.Int64

// mainGroup is the name of the cgroup (version 2) to which this process moves itself. The previous cgroup then contains
// no processes, so controllers can be enabled for that cgroup's children.
const mainGroup = "sluice-main"

// A controller is one of the kernel's cgroup controllers, `pids` or `memory`.
type controller struct {
	name    string
	version int
	// own is the directory of this process's cgroup. base is the directory of the limiter's cgroup, which contains a
	// cgroup for each Group.
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

// findControllers returns the controllers for this process's cgroups. A controller that can't be used is nil, and why
// contains the reason.
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
	if c.version == 2 && !slices.Contains(strings.Fields(readFile(c.own, "cgroup.controllers")), name) {
		return nil, fmt.Errorf("%s: the controller is not delegated to this process's cgroup", name)
	}
	if c.version == 1 && name == Memory && readNumber(c.own, "memory.use_hierarchy") != 1 {
		return nil, errors.New("memory: groups in this process's cgroup would escape its limit")
	}
	c.base = filepath.Join(c.own, base)
	return c, nil
}

// cgroupMount is a mounted cgroup hierarchy. root is the mounted part of the hierarchy, and point is the mount point.
type cgroupMount struct{ root, point string }

// cgroupMounts returns the mounted cgroup hierarchies by key. The key of a version 1 hierarchy is its controller. The
// key of the version 2 hierarchy is "".
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

// cgroupPaths returns the paths of this process's cgroups by key. The key of a version 1 cgroup is its controller. The
// key of the version 2 cgroup is "".
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

// begin creates the limiter's cgroup, with the limits for all groups together.
func (c *controller) begin(share Limits) error {
	c.removeLeftovers()
	if c.version == 2 {
		if err := c.delegate(); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := c.make(c.base, share); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	if c.version == 2 {
		if err := writeFile(c.base, "cgroup.subtree_control", "+"+c.name); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// removeLeftovers removes the cgroups of processes that were killed. It does not remove a cgroup that still contains
// processes, because the kernel refuses that.
func (c *controller) removeLeftovers() {
	found, _ := filepath.Glob(filepath.Join(c.own, basePrefix+"[0-9]*"))
	for _, dir := range found {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), basePrefix), "-")
		// A cgroup with this process's id is left from an earlier process with the same id, unless this process has
		// created the cgroup.
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

// delegate enables this controller for the cgroups below this process's cgroup (version 2). In version 2, a cgroup may
// not contain processes if a controller is enabled for its children. Therefore this process and its children are moved
// to mainGroup. If the cgroup contains other programs' processes, delegate changes nothing and returns an error.
func (c *controller) delegate() error {
	if slices.Contains(strings.Fields(readFile(c.own, "cgroup.subtree_control")), c.name) {
		return nil
	}
	if readFile(c.own, "cgroup.type") != "" { // the root cgroup has no such file, and may contain processes
		if err := c.moveAside(); err != nil {
			return err
		}
	}
	return writeFile(c.own, "cgroup.subtree_control", "+"+c.name)
}

func (c *controller) moveAside() error {
	all := readPIDs(c.own)
	for _, pid := range all {
		if !isDescendant(pid, os.Getpid()) {
			return errors.New("this process's cgroup contains other programs' processes, too: start the mesh in one of its own, such as with systemd's Delegate=yes")
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
		if err := writeFile(to, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// make creates a cgroup with limits. In version 2, the cgroup might already exist, because both controllers share it.
func (c *controller) make(dir string, limits Limits) error {
	if err := os.Mkdir(dir, 0o755); err != nil && (c.version == 1 || !errors.Is(err, fs.ErrExist)) {
		return err
	}
	if c.name == "pids" {
		return writeFile(dir, "pids.max", strconv.Itoa(limits.Tasks))
	}
	most := strconv.FormatInt(limits.Memory, 10)
	if c.version == 1 {
		if err := writeFile(dir, "memory.limit_in_bytes", most); err != nil {
			return err
		}
		_ = writeFile(dir, "memory.memsw.limit_in_bytes", most) // fails if the kernel does not count swap
		return nil
	}
	if err := writeFile(dir, "memory.max", most); err != nil {
		return err
	}
	_ = writeFile(dir, "memory.swap.max", "0") // fails if there is no swap
	if dir != c.base {                         // in base, the kernel would kill all servers together
		_ = writeFile(dir, "memory.oom.group", "1")
	}
	return nil
}

// oomKills returns how many processes in a cgroup the kernel has killed because memory ran out.
func (c *controller) oomKills(dir string) int64 {
	if c.version == 1 {
		return readCounter(dir, "memory.oom_control", "oom_kill")
	}
	return readCounter(dir, "memory.events", "oom_kill")
}

func writeFile(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
}

func readFile(dir, file string) string {
	raw, _ := os.ReadFile(filepath.Join(dir, file)) // an unreadable file counts as empty
	return string(raw)
}

// readNumber returns the number in a file. It returns 0 if the file contains no number, and the maximum number if it
// contains `max`.
func readNumber(dir, file string) int64 {
	value := strings.TrimSpace(readFile(dir, file))
	if value == "max" {
		return 1<<63 - 1
	}
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

// readCounter returns the number in the line `key number` of a file.
func readCounter(dir, file, key string) int64 {
	lines := bufio.NewScanner(bytes.NewReader([]byte(readFile(dir, file))))
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
	for word := range strings.FieldsSeq(readFile(dir, "cgroup.procs")) {
		if pid, err := strconv.Atoi(word); err == nil {
			out = append(out, pid)
		}
	}
	return out
}
