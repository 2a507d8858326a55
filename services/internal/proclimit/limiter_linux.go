package proclimit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A Limiter makes groups of processes with limits. It is safe for concurrent use.
type Limiter struct {
	pids, memory *controller
	report       Report
	// share is what all groups may take together.
	share Limits

	mu     sync.Mutex
	made   int
	groups map[*Group]struct{}
	table  table
}

// A Group is one process with all its descendants.
type Group struct {
	limiter *Limiter
	limits  Limits
	// pids and memory are the folders of its cgroups; empty where that controller is not used. They are the same in
	// version 2.
	pids, memory string
	leader       int
	// known are the processes that were found to belong to it, with the start time of each. Limiter.mu guards it.
	known map[int]uint64
	usage usage
}

// usage is what a group takes.
type usage struct {
	tasks  int
	memory int64
}

// New returns a limiter that uses cgroups where it can make them. It makes one for this process's groups, which Close
// removes. Without cgroups it watches; it never fails.
func New() *Limiter {
	l := &Limiter{groups: make(map[*Group]struct{})}
	var why []error
	l.pids, l.memory, why = findControllers()
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

// Report says how limits hold on this system.
func (l *Limiter) Report() Report { return l.report }

// Close removes what the limiter made. All groups must have been closed.
func (l *Limiter) Close() error {
	var errs []error
	for _, dir := range foldersOf(l.pids.dir(), l.memory.dir()) {
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(errs...)
}

// Group makes a group for a process that is not started yet. The name becomes a part of a file name.
func (l *Limiter) Group(name string, limits Limits) (*Group, error) {
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
	if err != nil {
		g.remove()
		return nil, fmt.Errorf("limit its tasks and memory: %w", err)
	}
	l.groups[g] = struct{}{}
	return g, nil
}

// Join puts a process into the group, before it has any children, and makes it one of the first that the kernel ends
// where memory is short.
func (g *Group) Join(pid int) error {
	for _, dir := range foldersOf(g.pids, g.memory) {
		if err := put(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("limit its tasks and memory: %w", err)
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(OOMScore)), 0); err != nil {
		return fmt.Errorf("have the kernel end it before the mesh: %w", err)
	}
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	g.leader = pid
	return nil
}

// Check returns an [Exceeded] if the group has reached a limit since it was made, nil otherwise.
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
		g.usage.memory = 0 // the kernel holds the share, too; what it counts has caches in it
	}
	switch {
	case g.pids == "" && g.usage.tasks > g.limits.Tasks:
		return &Exceeded{Limit: Tasks, Most: int64(g.limits.Tasks)}
	case g.memory == "" && g.usage.memory > g.limits.Memory:
		return &Exceeded{Limit: Memory, Most: g.limits.Memory}
	}
	return g.checkShare()
}

// reached returns the limit that the kernel has enforced.
func (g *Group) reached() error {
	switch {
	case g.pids != "" && counter(g.pids, "pids.events", "max") > 0:
		return &Exceeded{Limit: Tasks, Most: int64(g.limits.Tasks)}
	case g.memory != "" && g.limiter.memory.kills(g.memory) > 0:
		return &Exceeded{Limit: Memory, Most: g.limits.Memory}
	}
	return nil
}

// checkShare returns an [Exceeded] if all groups together take too much and this one takes the most.
func (g *Group) checkShare() error {
	var all, most usage
	for other := range g.limiter.groups {
		all.tasks += other.usage.tasks
		all.memory += other.usage.memory
		most.tasks, most.memory = max(most.tasks, other.usage.tasks), max(most.memory, other.usage.memory)
	}
	share := g.limiter.share
	switch {
	case all.tasks >= share.Tasks && g.usage.tasks == most.tasks:
		return &Exceeded{Limit: Tasks, Most: int64(share.Tasks), Shared: true}
	case all.memory >= share.Memory && g.usage.memory == most.memory:
		return &Exceeded{Limit: Memory, Most: share.Memory, Shared: true}
	}
	return nil
}

// PIDs returns the processes of the group that are known now.
func (g *Group) PIDs() []int {
	if dir := g.folder(); dir != "" {
		return readPIDs(dir)
	}
	l := g.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
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

// End kills what the group has beside its leader, wherever that went. The number of the leader must not be another
// process's yet.
func (g *Group) End() { g.kill() }

// Close removes the group's cgroups. All its processes must have ended.
func (g *Group) Close() {
	g.limiter.mu.Lock()
	delete(g.limiter.groups, g)
	g.limiter.mu.Unlock()
	g.remove()
}

func (g *Group) remove() {
	for _, dir := range foldersOf(g.pids, g.memory) {
		removeSoon(dir)
	}
}

// foldersOf returns the folders that are named, each once.
func foldersOf(dirs ...string) []string {
	var out []string
	for i, dir := range dirs {
		if dir != "" && (i == 0 || dir != dirs[0]) {
			out = append(out, dir)
		}
	}
	return out
}
