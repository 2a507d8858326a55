package proclimit

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A Limiter creates groups of processes with limits. It is safe for concurrent use.
type Limiter struct {
	pids, memory *controller
	// total is the limit for all groups together.
	total Limits

	mu     sync.Mutex
	report Report
	made   int
	groups map[*Group]struct{}
	table  table
}

// A Group is one process together with all its descendants.
type Group struct {
	limiter *Limiter
	limits  Limits
	// pids and memory are the directories of the group's cgroups. They are empty if the controller is not used. In
	// cgroup version 2, both are the same directory.
	pids, memory string
	// made contains the directories that were created for the group, even if they are not used.
	made   []string
	leader int
	// known maps the processes in the group to their start times. Limiter.mu guards it.
	known map[int]uint64
	usage usage
	// refused is the number of forks that the kernel has refused because all groups together reached their limit.
	refused int64
}

type usage struct {
	tasks  int
	memory int64
}

// New returns a limiter that uses cgroups if it can create them. It creates one cgroup that contains the cgroups of all
// its groups. Close removes this cgroup. If New can't create cgroups, the limiter counts processes itself. New never
// fails.
func New() *Limiter {
	l := &Limiter{groups: make(map[*Group]struct{})}
	var why []error
	l.pids, l.memory, why = findControllers(basePrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(limiters.Add(1), 10))
	l.total = machineLimits(l.pids, l.memory)
	for _, c := range []**controller{&l.pids, &l.memory} {
		if *c == nil {
			continue
		}
		if err := (*c).begin(l.total); err != nil {
			why = append(why, err)
			*c = nil
		}
	}
	l.report.add(Tasks, l.pids.number())
	l.report.add(Memory, l.memory.number())
	if err := errors.Join(why...); err != nil {
		l.report.Why = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return l
}

// NewWatching returns a limiter that does not use cgroups. It counts processes itself.
func NewWatching() *Limiter {
	l := &Limiter{groups: make(map[*Group]struct{}), total: machineLimits(nil, nil)}
	l.report.add(Tasks, 0)
	l.report.add(Memory, 0)
	l.report.Why = "cgroups are not used"
	return l
}

// Report returns which limits the kernel enforces on this system.
func (l *Limiter) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report.clone()
}

// Close removes the cgroups that the limiter has created. All groups must have been closed before. If Close can't
// remove a cgroup, the next limiter removes it.
func (l *Limiter) Close() {
	for _, dir := range distinctFolders(l.pids.dir(), l.memory.dir()) {
		removeRetrying(dir)
	}
}

// Group creates a group for a process that has not started yet. name becomes part of a file name. If cgroups can't be
// created for the group, the limiter itself counts the group's processes.
func (l *Limiter) Group(name string, limits Limits) *Group {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	g := &Group{limiter: l, limits: limits, known: make(map[int]uint64)}
	name += "-" + strconv.Itoa(l.made)
	var err error
	if l.pids != nil {
		g.pids = filepath.Join(l.pids.base, name)
		err = l.pids.make(g.pids, limits)
	}
	if l.memory != nil && err == nil {
		g.memory = filepath.Join(l.memory.base, name)
		err = l.memory.make(g.memory, limits)
	}
	g.made = distinctFolders(g.pids, g.memory)
	if err != nil {
		g.countProcesses(err)
	}
	l.groups[g] = struct{}{}
	return g
}

// countProcesses makes the limiter itself count the group's processes, without cgroups. The caller must hold
// Limiter.mu.
func (g *Group) countProcesses(err error) {
	g.pids, g.memory = "", ""
	g.limiter.report.note("tasks and memory of some programs: watched, not limited by the kernel", err)
}

// Join adds a process to the group before the process has children. It also raises the process's OOM score, so that the
// kernel kills the process early when memory runs out. If this fails, the program runs nevertheless, and
// [Limiter.Report] reports the failure.
func (g *Group) Join(pid int) {
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	g.leader = pid
	for _, dir := range distinctFolders(g.pids, g.memory) {
		if err := writeFile(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && isRunning(pid) {
			g.countProcesses(err)
			break
		}
	}
	if err := raiseOOMScore(pid); err != nil && isRunning(pid) {
		g.limiter.report.note("which processes the kernel ends first if memory runs out", err)
	}
}

// raiseOOMScore raises the oom_score_adj of a process to OOMScore. It does not lower a higher value, because only
// privileged processes may lower it.
func raiseOOMScore(pid int) error {
	dir := "/proc/" + strconv.Itoa(pid)
	if readNumber(dir, "oom_score_adj") >= OOMScore {
		return nil
	}
	return writeFile(dir, "oom_score_adj", strconv.Itoa(OOMScore))
}

// isRunning reports whether a process is running. A zombie is not running.
func isRunning(pid int) bool {
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	p, ok := parseStat(raw)
	return ok && !p.dead
}

// Check returns an [ExceededError] if the group has exceeded a limit since it was created. Otherwise it returns nil.
func (g *Group) Check() error {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := g.kernelExceeded(); err != nil {
		return err
	}
	if g.pids == "" || g.memory == "" {
		l.table.refresh(l.groups)
	}
	if g.pids != "" {
		g.usage.tasks = int(readNumber(g.pids, "pids.current"))
	}
	if g.memory != "" {
		g.usage.memory = 0 // the kernel also enforces the limit for all groups, and its count includes caches
	}
	switch {
	case g.usage.tasks > g.limits.Tasks: // even with cgroups, because a program might have raised its limit
		return &ExceededError{Limit: Tasks, Max: int64(g.limits.Tasks)}
	case g.memory == "" && g.usage.memory > g.limits.Memory:
		return &ExceededError{Limit: Memory, Max: g.limits.Memory}
	}
	return g.checkTotal()
}

func (g *Group) kernelExceeded() error {
	switch {
	case g.pids != "" && g.wasRefused():
		return &ExceededError{Limit: Tasks, Max: int64(g.limits.Tasks)}
	case g.memory != "" && g.limiter.memory.oomKills(g.memory) > 0:
		return &ExceededError{Limit: Memory, Max: g.limits.Memory}
	}
	return nil
}

// wasRefused reports whether the kernel has refused a fork because of the group's limit. Some kernels also count forks
// that were refused because of the limit for all groups together. Such forks do not count here, because
// [Group.checkTotal] checks that limit.
func (g *Group) wasRefused() bool {
	times := readCounter(g.pids, "pids.events", "max")
	if times <= g.refused {
		return false
	}
	base, share := readNumber(g.limiter.pids.base, "pids.current"), int64(g.limiter.total.Tasks)
	if base >= share-share/8 && readNumber(g.pids, "pids.current") < int64(g.limits.Tasks) {
		g.refused = times
		return false
	}
	return true
}

// checkTotal returns an [ExceededError] if all groups together are near their common limit, and no other group uses
// more than this group. The groups are near the limit if they use seven eighths of the tasks or all of the memory.
func (g *Group) checkTotal() error {
	var all, most usage
	for other := range g.limiter.groups {
		all.tasks += other.usage.tasks
		all.memory += other.usage.memory
		most.tasks, most.memory = max(most.tasks, other.usage.tasks), max(most.memory, other.usage.memory)
	}
	share := g.limiter.total
	switch {
	case all.tasks >= share.Tasks-share.Tasks/8 && g.usage.tasks == most.tasks:
		return &ExceededError{Limit: Tasks, Max: int64(share.Tasks), Shared: true}
	case all.memory >= share.Memory && g.usage.memory == most.memory:
		return &ExceededError{Limit: Memory, Max: share.Memory, Shared: true}
	}
	return nil
}

// PIDs returns the ids of the processes in the group.
func (g *Group) PIDs() []int {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if dir := g.folder(); dir != "" {
		return readPIDs(dir)
	}
	l.table.read(l.groups)
	var out []int
	for pid := range g.known {
		out = append(out, pid)
	}
	return out
}

// folder returns the directory of one of the group's cgroups, or "" if the group uses no cgroup.
func (g *Group) folder() string {
	if g.pids != "" {
		return g.pids
	}
	return g.memory
}

// End kills the group's processes except for the leader, even those that have moved to another session. The leader's
// process id must not have been reused.
func (g *Group) End() { g.kill() }

// Close removes the group's cgroups. All processes of the group must have ended.
func (g *Group) Close() {
	g.limiter.mu.Lock()
	delete(g.limiter.groups, g)
	g.limiter.mu.Unlock()
	for _, dir := range g.made {
		removeRetrying(dir)
	}
}

// distinctFolders returns the directories without empty names and duplicates.
func distinctFolders(dirs ...string) []string {
	var out []string
	for i, dir := range dirs {
		if dir != "" && (i == 0 || dir != dirs[0]) {
			out = append(out, dir)
		}
	}
	return out
}
