package hostile_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

type measurements struct {
	pid   int
	began time.Time
	// quiet and attacked contain the durations of calls while the attackers rested and while they attacked. ratios
	// contains each round's ratio between the two 99th percentiles.
	quiet, attacked []time.Duration
	ratios          []float64
	// attacks contains the number of times that each attack was made, by the attack's name. attacking is the total
	// duration of the attacks.
	attacks   map[string]int64
	attacking time.Duration
	// now and most are the current and the highest resident memory of the mesh, in MiB.
	now, most int
	// restCPU and attackCPU are the processor time that the mesh used during the measurements at rest and under attack.
	restCPU, attackCPU time.Duration
}

// measureRound measures the well-behaved agent while the attackers rest and then while they attack. If ctx is done
// before the round is complete, the results of the round are discarded.
func (w *measurements) measureRound(ctx context.Context, t *testing.T, caller *goodAgent, bad *attackers) {
	t.Helper()
	caller.makeCalls(ctx, t, settleTime)
	cpu := w.cpuTime(t)
	quiet := caller.makeCalls(ctx, t, measureTime)
	w.restCPU += w.cpuTime(t) - cpu
	begun := time.Now()
	bad.switchTo(commandAttack)
	caller.makeCalls(ctx, t, settleTime)
	cpu = w.cpuTime(t)
	attacked := caller.makeCalls(ctx, t, measureTime)
	w.attackCPU += w.cpuTime(t) - cpu
	w.measureMemory(t)
	w.attacks = bad.switchTo(commandRest)
	w.attacking += time.Since(begun)
	if ctx.Err() == nil {
		w.quiet, w.attacked = append(w.quiet, quiet...), append(w.attacked, attacked...)
		w.ratios = append(w.ratios, float64(percentile(attacked, 99))/float64(percentile(quiet, 99)))
	}
}

// ratio returns the median of the ratios of all rounds, or 0 if there are no rounds.
func (w *measurements) ratio() float64 {
	if len(w.ratios) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(w.ratios))
	return sorted[len(sorted)/2]
}

// logProgress logs the current results in one line.
func (w *measurements) logProgress(t *testing.T) {
	t.Helper()
	slices.Sort(w.quiet)
	slices.Sort(w.attacked)
	var attacks int64
	for _, n := range w.attacks {
		attacks += n
	}
	t.Logf("%v: %d rounds; p99 %v at rest, %v under attack, median ratio %.2f; %d MiB resident, %d at most; %d attacks, %d calls",
		time.Since(w.began).Round(time.Second), len(w.ratios), percentile(w.quiet, 99), percentile(w.attacked, 99), w.ratio(),
		w.now, w.most, attacks, len(w.quiet)+len(w.attacked))
}

// missingAttack returns the name of an attack that has not been made yet, or "" if all have been made.
func (w *measurements) missingAttack() string {
	for _, name := range slices.Sorted(maps.Keys(w.attacks)) {
		if w.attacks[name] == 0 {
			return name
		}
	}
	return ""
}

func (w *measurements) logSummary(t *testing.T) {
	t.Helper()
	w.logProgress(t)
	for _, name := range slices.Sorted(maps.Keys(w.attacks)) {
		t.Logf("%8d × %s, %.1f a second", w.attacks[name], name, float64(w.attacks[name])/w.attacking.Seconds())
	}
	for _, of := range []struct {
		name  string
		calls []time.Duration
		cpu   time.Duration
	}{{"at rest", w.quiet, w.restCPU}, {"under attack", w.attacked, w.attackCPU}} {
		looked := measureTime * time.Duration(max(1, len(w.ratios)))
		t.Logf("%s: %d calls, p50 %v, p90 %v, p99 %v, at most %v; the mesh used %.2f processors",
			of.name, len(of.calls), percentile(of.calls, 50), percentile(of.calls, 90), percentile(of.calls, 99), percentile(of.calls, 100), of.cpu.Seconds()/looked.Seconds())
	}
}

func (w *measurements) measureMemory(t *testing.T) {
	t.Helper()
	raw := w.readProc(t, "status")
	for line := range strings.Lines(raw) {
		name, text, _ := strings.Cut(line, ":")
		kib, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), " kB")) // Atoi returns 0 for other lines, which contain no numbers
		switch name {
		case "VmRSS":
			w.now = kib >> 10
		case "VmHWM":
			w.most = kib >> 10
		}
	}
	if w.most == 0 {
		t.Fatalf("no VmHWM in %s", raw)
	}
}

// cpuTime returns the processor time that the mesh has used so far.
func (w *measurements) cpuTime(t *testing.T) (used time.Duration) {
	t.Helper()
	_, text, _ := strings.Cut(w.readProc(t, "stat"), ") ") // after the program's name
	fields := strings.Fields(text)
	const utime, stime, tick = 11, 12, 10 * time.Millisecond // see proc_pid_stat(5); the indexes do not count fields 1 and 2
	for _, at := range []int{utime, stime} {
		ticks, err := strconv.Atoi(fields[at])
		if err != nil {
			t.Fatal(err)
		}
		used += time.Duration(ticks) * tick
	}
	return used
}

func (w *measurements) readProc(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", w.pid, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
