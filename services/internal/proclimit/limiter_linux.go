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
	// share is what all groups may use together.
	share Limits

	mu     sync.Mutex
	report Report
	made   int
	groups map[*Group]struct{}
	table  table
}

// A Group is one process with all its descendants.
type Group struct {
	limiter *Limiter
	limits  Limits
	// pids and memory are the folders of its cgroups; empty if that controller is not used. They are the same in
	// version 2.
	pids, memory string
	// made are the folders that were created for it, used or not.
	made   []string
	leader int
	// known are the processes that were found to belong to it, with the start time of each. Limiter.mu guards it.
	known map[int]uint64
	usage usage
	// refused is how many forks the kernel has refused because of the limit of all groups together.
	refused int64
}

// usage is what a group uses.
type usage struct {
	tasks  int
	memory int64
}

// New returns a limiter that uses cgroups if it can create them. It creates one for this process's groups, which
// Close removes. Without cgroups it watches processes; it never fails.
func New() *Limiter {
	l := &Limiter{groups: make(map[*Group]struct{})}
	var why []error
	l.pids, l.memory, why = findControllers(basePrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(limiters.Add(1), 10))
	l.share = shareOfMachine(l.pids, l.memory)
	for _, c := range []**controller{&l.pids, &l.memory} {
		if *c == nil {
			continue
		}
		if err := (*c).begin(l.share); err != nil {
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

// NewWatching returns a limiter that uses no cgroups.
func NewWatching() *Limiter {
	l := &Limiter{groups: make(map[*Group]struct{}), share: shareOfMachine(nil, nil)}
	l.report.add(Tasks, 0)
	l.report.add(Memory, 0)
	l.report.Why = "cgroups are not used"
	return l
}

// Report says which limits are enforced on this system.
func (l *Limiter) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report.clone()
}

// Close removes what the limiter created. All groups must have been closed. What can't be removed is left for the
// next limiter of this cgroup.
func (l *Limiter) Close() {
	for _, dir := range foldersOf(l.pids.dir(), l.memory.dir()) {
		removeSoon(dir)
	}
}

// Group creates a group for a process that is not started yet. The name becomes a part of a file name. If no cgroups
// can be created, the group is watched.
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
	g.made = foldersOf(g.pids, g.memory)
	if err != nil {
		g.fallBack(err)
	}
	l.groups[g] = struct{}{}
	return g
}

// fallBack makes the limiter watch the group instead of using cgroups. The caller must hold Limiter.mu.
func (g *Group) fallBack(err error) {
	g.pids, g.memory = "", ""
	g.limiter.report.note("tasks and memory of some programs: watched, not limited by the kernel", err)
}

// Join puts a process into the group, before it has children, and makes it one of the first that the kernel ends when
// memory is short. Failures are reported by [Limiter.Report]: the program runs anyway.
func (g *Group) Join(pid int) {
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	g.leader = pid
	for _, dir := range foldersOf(g.pids, g.memory) {
		if err := put(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && alive(pid) {
			g.fallBack(err)
			break
		}
	}
	if err := raiseScore(pid); err != nil && alive(pid) {
		g.limiter.report.note("which processes the kernel ends first where memory is short", err)
	}
}

// raiseScore sets the oom_score_adj of a process unless it is higher: only privileged processes may lower one.
func raiseScore(pid int) error {
	dir := "/proc/" + strconv.Itoa(pid)
	if number(dir, "oom_score_adj") >= OOMScore {
		return nil
	}
	return put(dir, "oom_score_adj", strconv.Itoa(OOMScore))
}

// alive reports whether a process runs; an ended process that was not waited for does not.
func alive(pid int) bool {
	raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	p, ok := parseStat(raw)
	return ok && !p.dead
}

// Check returns an [ExceededError] if the group has reached a limit since it was created, nil otherwise.
func (g *Group) Check() error {
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := g.reached(); err != nil {
		return err
	}
	if g.pids == "" || g.memory == "" {
		l.table.refresh(l.groups)
	}
	if g.pids != "" {
		g.usage.tasks = int(number(g.pids, "pids.current"))
	}
	if g.memory != "" {
		g.usage.memory = 0 // the kernel enforces the limit of all groups too; its count contains caches
	}
	switch {
	case g.usage.tasks > g.limits.Tasks: // with cgroups too: a program may have raised its own limit
		return &ExceededError{Limit: Tasks, Most: int64(g.limits.Tasks)}
	case g.memory == "" && g.usage.memory > g.limits.Memory:
		return &ExceededError{Limit: Memory, Most: g.limits.Memory}
	}
	return g.checkShare()
}

// reached returns the limit that the kernel has enforced.
func (g *Group) reached() error {
	switch {
	case g.pids != "" && g.wasRefused():
		return &ExceededError{Limit: Tasks, Most: int64(g.limits.Tasks)}
	case g.memory != "" && g.limiter.memory.kills(g.memory) > 0:
		return &ExceededError{Limit: Memory, Most: g.limits.Memory}
	}
	return nil
}

// wasRefused reports whether the kernel has refused a fork because of the group's own limit. Some kernels also count
// a fork that was refused because of the limit of all groups together: then the group that uses the most is ended.
func (g *Group) wasRefused() bool {
	times := counter(g.pids, "pids.events", "max")
	if times <= g.refused {
		return false
	}
	base, share := number(g.limiter.pids.base, "pids.current"), int64(g.limiter.share.Tasks)
	if base >= share-share/8 && number(g.pids, "pids.current") < int64(g.limits.Tasks) {
		g.refused = times
		return false
	}
	return true
}

// checkShare returns an [ExceededError] if all groups together use too much and this one uses the most.
func (g *Group) checkShare() error {
	var all, most usage
	for other := range g.limiter.groups {
		all.tasks += other.usage.tasks
		all.memory += other.usage.memory
		most.tasks, most.memory = max(most.tasks, other.usage.tasks), max(most.memory, other.usage.memory)
	}
	share := g.limiter.share
	switch {
	case all.tasks >= share.Tasks-share.Tasks/8 && g.usage.tasks == most.tasks:
		return &ExceededError{Limit: Tasks, Most: int64(share.Tasks), Shared: true}
	case all.memory >= share.Memory && g.usage.memory == most.memory:
		return &ExceededError{Limit: Memory, Most: share.Memory, Shared: true}
	}
	return nil
}

// PIDs returns the known processes of the group.
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

// folder returns one of its cgroups; empty for none.
func (g *Group) folder() string {
	if g.pids != "" {
		return g.pids
	}
	return g.memory
}

// End kills the group's processes except the leader, in any session. The leader's process id must not have been
// reused.
func (g *Group) End() { g.kill() }

// Close removes the group's cgroups. All its processes must have ended.
func (g *Group) Close() {
	g.limiter.mu.Lock()
	delete(g.limiter.groups, g)
	g.limiter.mu.Unlock()
	for _, dir := range g.made {
		removeSoon(dir)
	}
}

// foldersOf returns the non-empty folders, each once.
func foldersOf(dirs ...string) []string {
	var out []string
	for i, dir := range dirs {
		if dir != "" && (i == 0 || dir != dirs[0]) {
			out = append(out, dir)
		}
	}
	return out
}
