package proclimit

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tableAge is how old the table of processes can get before it counts as out of date. It also counts as out of date if
	// the machine has at least tableTasks more tasks, or tableMemory bytes less free memory, than when the table was read.
	tableAge    = time.Second
	tableTasks  = 48
	tableMemory = 64 << 20
	// killRounds limits how often the processes of a group are listed and killed. killPause is the pause between these
	// attempts.
	killRounds = 100
	killPause  = 5 * time.Millisecond
)

// table is the table of all processes on the machine. It is used for groups without cgroups.
type table struct {
	at     time.Time
	tasks  int64
	memory int64
}

// refresh reads the table again if it may be out of date. Otherwise refresh does nothing, because reading the table is
// slow on a machine with many processes.
func (t *table) refresh(groups map[*Group]struct{}) {
	tasks, memory := machineTasks(), freeMemory()
	if time.Since(t.at) < tableAge && tasks-t.tasks < tableTasks && t.memory-memory < tableMemory {
		return
	}
	t.read(groups)
	t.at, t.tasks, t.memory = time.Now(), tasks, memory
}

type process struct {
	pid, parent, session, group int
	threads                     int
	started                     uint64
	resident                    int64
	// dead is true if the process is a zombie.
	dead bool
}

// read finds the processes of each group and adds up their usage.
func (t *table) read(groups map[*Group]struct{}) {
	all := processes()
	for g := range groups {
		if g.leader != 0 {
			g.count(all)
		}
	}
}

// count finds the group's processes, which are the leader, the processes in its session, the processes that earlier
// calls to count found, and all descendants of these processes.
func (g *Group) count(all map[int]process) {
	belongs := make(map[int]bool)
	var find func(pid int) bool
	find = func(pid int) bool {
		p, ok := all[pid]
		if !ok {
			return false
		}
		if known, seen := belongs[pid]; seen {
			return known
		}
		belongs[pid] = false // parents can form a cycle, because processes change while the table is read
		known, was := g.known[pid]
		in := pid == g.leader || p.session == g.leader || p.group == g.leader || was && known == p.started || find(p.parent)
		belongs[pid] = in
		return in
	}
	g.usage = usage{}
	known := make(map[int]uint64)
	for pid, p := range all {
		switch {
		case !find(pid):
		case p.dead: // a zombie counts if its parent, which must wait for it, is in the group
			if find(p.parent) {
				g.usage.tasks++
			}
		default:
			known[pid] = p.started
			g.usage.tasks += p.threads
			g.usage.memory += p.resident - sharedMemory(pid)
		}
	}
	g.known = known
}

// sharedMemory returns how many bytes of a process's resident memory are shared or belong to files (proc_pid_statm(5)).
// Callers subtract this number, because otherwise shared pages would be counted once for each process.
func sharedMemory(pid int) int64 {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 3 {
		return 0
	}
	n, _ := strconv.ParseInt(fields[2], 10, 64)
	return n * int64(os.Getpagesize())
}

// kill kills every process of the group except for the leader, even those that have moved to another session.
func (g *Group) kill() {
	for range killRounds {
		left := 0
		for _, pid := range g.PIDs() {
			if pid != g.leader && isRunning(pid) && syscall.Kill(pid, syscall.SIGKILL) == nil {
				left++
			}
		}
		if left == 0 {
			return
		}
		<-time.After(killPause)
	}
}

// removeRetrying removes a cgroup. It retries, because the processes in the cgroup need time to end.
func removeRetrying(dir string) {
	for range killRounds {
		if err := os.Remove(dir); err == nil || os.IsNotExist(err) {
			return
		}
		<-time.After(killPause)
	}
}

func processes() map[int]process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close() //nolint:errcheck // the directory was only read
	names, _ := dir.Readdirnames(-1)
	out := make(map[int]process, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		raw, err := os.ReadFile("/proc/" + name + "/stat")
		if p, ok := parseStat(raw); err == nil && ok {
			p.pid = pid
			out[pid] = p
		}
	}
	return out
}

// parseStat parses /proc/PID/stat (proc_pid_stat(5)). The second field may contain any characters. It ends with the
// last closing parenthesis.
func parseStat(raw []byte) (p process, ok bool) {
	end := bytes.LastIndexByte(raw, ')')
	if end < 0 {
		return p, false
	}
	fields := strings.Fields(string(raw[end+1:]))
	const ppid, pgrp, session, threads, start, rss = 1, 2, 3, 17, 19, 21
	if len(fields) <= rss {
		return p, false
	}
	p.dead = strings.ContainsAny(fields[0], "ZX")
	number := func(i int) int64 { n, _ := strconv.ParseInt(fields[i], 10, 64); return n }
	p.parent, p.group, p.session = int(number(ppid)), int(number(pgrp)), int(number(session))
	p.threads, p.resident = int(number(threads)), number(rss)*int64(os.Getpagesize())
	p.started, _ = strconv.ParseUint(fields[start], 10, 64)
	return p, true
}

// isDescendant reports whether a process is the given ancestor or one of its descendants.
func isDescendant(pid, ancestor int) bool {
	for pid > 1 {
		if pid == ancestor {
			return true
		}
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		p, ok := parseStat(raw)
		if err != nil || !ok {
			return false
		}
		pid = p.parent
	}
	return pid == ancestor
}

// machineTasks returns the number of tasks on the machine (proc_loadavg(5)).
func machineTasks() int64 {
	raw, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(fields[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return n
}

// freeMemory returns the free memory of the machine, in bytes.
func freeMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Freeram) * int64(info.Unit)
}

// noLimit is used as the limit if a maximum of the machine is unknown.
const noLimit = 1 << 30

// machineLimits returns the limits for all groups together, which are three quarters of the machine's maximum number of
// tasks, and three quarters of its memory. If a maximum is unknown, there is no limit.
func machineLimits(pids, memory *controller) Limits {
	tasks := int64(noLimit)
	for _, file := range []string{"threads-max", "pid_max"} {
		if most := readNumber("/proc/sys/kernel", file); most > 0 {
			tasks = min(tasks, most)
		}
	}
	var own unix.Rlimit
	if os.Geteuid() != 0 && unix.Getrlimit(unix.RLIMIT_NPROC, &own) == nil && own.Cur > 0 && own.Cur < noLimit {
		tasks = min(tasks, int64(own.Cur))
	}
	if pids != nil {
		if most := readNumber(pids.own, "pids.max"); most > 0 {
			tasks = min(tasks, most)
		}
	}
	bytes := int64(noLimit) << 20
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil && info.Totalram > 0 {
		bytes = int64(info.Totalram) * int64(info.Unit)
	}
	if memory != nil {
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			if most := readNumber(memory.own, file); most > 0 {
				bytes = min(bytes, most)
			}
		}
	}
	return Limits{Tasks: int(tasks / 4 * 3), Memory: bytes / 4 * 3}
}
