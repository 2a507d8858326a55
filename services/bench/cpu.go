package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc (USER_HZ). It is 1/100 s on all Linux architectures that Go supports.
const clockTick = 10 * time.Millisecond

// processCPU returns the user and system time that a process has used.
func processCPU(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseProcess(string(raw))
}

func parseProcess(text string) (time.Duration, error) {
	// The name of the process is in parentheses and may contain any character, so its end is the last parenthesis of the
	// line.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const user, system = 11, 12 // fields 14 and 15 of the whole line
	if len(fields) <= system {
		return 0, fmt.Errorf("a process's stat has %d fields after its name", len(fields))
	}
	return ticks(fields[user], fields[system])
}

// machineCPU returns the busy time of all CPUs together. This time includes the time that the hypervisor gave to other
// virtual machines.
func machineCPU() (time.Duration, error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseMachine(string(raw))
}

func parseMachine(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("the machine's stat begins with %q", line)
	}
	return ticks(fields[1], fields[2], fields[3], fields[6], fields[7], fields[8])
}

func ticks(counts ...string) (time.Duration, error) {
	var sum time.Duration
	for _, text := range counts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read a CPU time: %w", err)
		}
		sum += time.Duration(n) * clockTick
	}
	return sum, nil
}

// meter measures the CPU time of processes and of the whole machine since startMeter. On a system without /proc it
// measures nothing.
type meter struct {
	names   []string
	pids    []int
	begin   []time.Duration
	machine time.Duration
	started time.Time
	broken  bool
}

func startMeter(names []string, pids []int) *meter {
	m := &meter{names: names, pids: pids, started: time.Now()}
	m.begin, m.machine, m.broken = m.read()
	return m
}

func (m *meter) read() (used []time.Duration, machine time.Duration, broken bool) {
	machine, err := machineCPU()
	if err != nil {
		return nil, 0, true
	}
	for _, pid := range m.pids {
		cpu, err := processCPU(pid)
		if err != nil {
			return nil, 0, true
		}
		used = append(used, cpu)
	}
	return used, machine, false
}

// stop returns the CPU time of each process, and the share of the machine's CPU time, from 0 to 1, that other processes
// used.
func (m *meter) stop() ([]ProcessCPU, float64) {
	used, machine, broken := m.read()
	if m.broken || broken {
		return nil, 0
	}
	out := make([]ProcessCPU, len(m.names))
	foreign := machine - m.machine
	for i, name := range m.names {
		out[i] = ProcessCPU{Process: name, Used: used[i] - m.begin[i]}
		foreign -= out[i].Used
	}
	capacity := time.Since(m.started) * time.Duration(runtime.NumCPU())
	return out, max(0, float64(foreign)/float64(capacity))
}
