package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const preface = `# Benchmarks

Each case is a small ` + "`tools/call`" + ` to an echo server. Callers reuse their connection and session, and make calls
without a pause. The floor is ` + "`httputil.ReverseProxy`" + ` in front of that server, which makes no decisions. **A ratio is
the number of calls per second, divided by the floor's number in the same round.** A ratio of 1.00 means that
authentication, strict parsing, decision, limit and journal together cost no more than Go's own proxy. Read the median,
and distrust it if the spread next to it is wide. The absolute numbers are those of one machine.

The mesh has a policy of 100 rules, exports traces with a sampling rate of 1 %, and uses the journal's defaults. Each
program runs in a separate process on loopback and shares the machine with the load. Each caller is a separate principal.
In the denied case, the callers make calls for 2,000 principals in turn, so that every refusal is recorded one by one.

The leanest gateway shows the cost of a gateway without the mesh's work: it reads whole messages with ` + "`net/http`" + ` and
makes no decisions. Other gateways run with their defaults: without tokens, policy or journal.
`

// Report renders results as a Markdown page. It omits cells that were not measured.
func Report(r *Results, about About) []byte {
	var out bytes.Buffer
	out.WriteString(preface)
	writeAbout(&out, r, about)
	writeRatios(&out, r)
	writeComparisons(&out, r)
	writeChanges(&out, r)
	writeAbsolute(&out, r)
	writeCPU(&out, r)
	writeFailures(&out, r)
	return out.Bytes()
}

func writeAbout(out *bytes.Buffer, r *Results, a About) {
	out.WriteString("\n| | |\n|---|---|\n")
	for _, row := range [][2]string{
		{"machine", fmt.Sprintf("%s, %d cores, %s", a.CPU, a.Cores, a.Platform)},
		{"Go", a.Go},
		{"commit", a.Commit},
		{"compared with", a.Base},
		{"date", a.Date.Format(time.DateOnly)},
		{"command", "`" + a.Command + "`"},
		{"rounds", fmt.Sprintf("%d, interleaved, of %v a cell", a.Rounds, a.Duration)},
		{"other programs", foreignLoad(r)},
	} {
		if row[1] != "" {
			fmt.Fprintf(out, "| %s | %s |\n", row[0], row[1])
		}
	}
}

// foreignLoad returns a sentence about the CPU time that other programs used.
func foreignLoad(r *Results) string {
	disturbed, all := r.Disturbed()
	if disturbed == 0 {
		return fmt.Sprintf("had at most %.0f %% of the CPUs in each of %d measurements", 100*MaxForeign, all)
	}
	return fmt.Sprintf("had more than %.0f %% of the CPUs in %d of %d measurements, even when repeated: **the numbers are only rough**", 100*MaxForeign, disturbed, all)
}

// writeRatios writes the main table, which contains the ratios and their targets.
func writeRatios(out *bytes.Buffer, r *Results) {
	counts := r.callers()
	out.WriteString("\n## Calls per second, as a ratio to the floor\n\nThe median over the rounds (least–most); below it the target.\n\n| case |")
	for _, n := range counts {
		fmt.Fprintf(out, " %s |", callers(n))
	}
	out.WriteString("\n|---|" + strings.Repeat("---|", len(counts)) + "\n")
	for _, c := range r.cells() {
		fmt.Fprintf(out, "| %s |", c.Title)
		for _, n := range counts {
			fmt.Fprintf(out, " %s |", ratio(r.Ratio(c.Name, n), c.Targets[n]))
		}
		out.WriteString("\n")
	}
}

// writeComparisons writes, for each cell with a baseline, the ratio of its rate to the rate of the baseline.
func writeComparisons(out *bytes.Buffer, r *Results) {
	cells := slices.DeleteFunc(r.cells(), func(c Cell) bool { return c.Baseline == "" || c.base })
	if len(cells) == 0 {
		return
	}
	counts := r.callers()
	out.WriteString("\n## Conditions and JWTs\n\nThe number of calls per second, divided by that of the same call whose rule has no condition, or whose caller has a token instead of a JWT, in the same round: the median (least–most); below it the target. A decision that depends on arguments is not cached.\n\n| case |")
	for _, n := range counts {
		fmt.Fprintf(out, " %s |", callers(n))
	}
	out.WriteString("\n|---|" + strings.Repeat("---|", len(counts)) + "\n")
	for _, c := range cells {
		fmt.Fprintf(out, "| %s |", c.Title)
		for _, n := range counts {
			fmt.Fprintf(out, " %s |", ratio(r.Against(c.Name, c.Baseline, n, Sample.Rate), c.MinShare))
		}
		out.WriteString("\n")
	}
}

// writeChanges writes the comparison of the mesh with the base commit, if the run includes one.
func writeChanges(out *bytes.Buffer, r *Results) {
	cells := slices.DeleteFunc(r.cells(), func(c Cell) bool { return !c.base })
	if len(cells) == 0 {
		return
	}
	out.WriteString("\n## Before and after\n\nThe number of this commit divided by that of the base commit in the same round: the median (least–most). CPU is the CPU time of the mesh's processes.\n\n" +
		"| case | callers | calls per second | CPU per call |\n|---|--:|---|---|\n")
	for _, before := range cells {
		now := strings.TrimSuffix(before.Name, baseSuffix)
		for _, n := range r.callers() {
			rate, cpu := r.Against(now, before.Name, n, Sample.Rate), r.Against(now, before.Name, n, Sample.MeshCPU)
			fmt.Fprintf(out, "| %s | %d | %s | %s |\n", strings.TrimSuffix(before.Title, ", before"), n, ratio(rate, 0), ratio(cpu, 0))
		}
	}
}

// ratio formats a ratio with its spread for a table. The target is omitted if it is 0.
func ratio(s Spread, target float64) string {
	if s.Rounds == 0 {
		return "–"
	}
	text := fmt.Sprintf("**%.2f** (%.2f–%.2f)", s.Median, s.Min, s.Max)
	if target == 0 {
		return text
	}
	verdict := "missed"
	if s.Median >= target {
		verdict = "met"
	}
	return fmt.Sprintf("%s<br>≥ %.2f %s", text, target, verdict)
}

func writeAbsolute(out *bytes.Buffer, r *Results) {
	out.WriteString("\n## Calls per second and latency\n\nMedians over the rounds.\n\n| case | callers | calls/s | p50 | p99 |\n|---|--:|--:|--:|--:|\n")
	for _, c := range r.cells() {
		for _, n := range r.callers() {
			rate := r.Over(c.Name, n, Sample.Rate)
			if rate.Rounds == 0 {
				continue
			}
			p50 := r.Over(c.Name, n, func(s Sample) float64 { return float64(s.P50) })
			p99 := r.Over(c.Name, n, func(s Sample) float64 { return float64(s.P99) })
			fmt.Fprintf(out, "| %s | %d | %s | %s | %s |\n", c.Title, n, thousands(rate.Median), latency(p50.Median), latency(p99.Median))
		}
	}
}

// writeCPU writes the CPU time of each process per 1000 calls.
func writeCPU(out *bytes.Buffer, r *Results) {
	out.WriteString("\n## CPU seconds per 1000 calls, by process\n\nMedians over the rounds. `load` is the generator, `echo` the server behind everything.\n\n| case | callers | all | of which |\n|---|--:|--:|---|\n")
	for _, c := range r.cells() {
		for _, n := range r.callers() {
			used := r.PerCall(c.Name, n)
			if len(used) == 0 {
				continue
			}
			var all float64
			parts := make([]string, len(used))
			for i, p := range used {
				seconds := 1000 * p.Used.Seconds()
				all += seconds
				parts[i] = fmt.Sprintf("%s %.3f", p.Process, seconds)
			}
			fmt.Fprintf(out, "| %s | %d | %.3f | %s |\n", c.Title, n, all, strings.Join(parts, ", "))
		}
	}
}

func writeFailures(out *bytes.Buffer, r *Results) {
	if len(r.Failures) == 0 {
		return
	}
	out.WriteString("\n## Not measured\n\n")
	for _, why := range r.Failures {
		fmt.Fprintf(out, "* %s\n", strings.ReplaceAll(why, "\n", " "))
	}
}

// cells returns the cells that have samples, in the order of the report.
func (r *Results) cells() []Cell {
	return slices.DeleteFunc(withBase(Cells()), func(c Cell) bool {
		return !slices.ContainsFunc(r.Samples, func(s Sample) bool { return s.Cell == c.Name })
	})
}

// callers returns the numbers of callers that have samples, in ascending order.
func (r *Results) callers() []int {
	var counts []int
	for _, s := range r.Samples {
		counts = append(counts, s.Callers)
	}
	slices.Sort(counts)
	return slices.Compact(counts)
}

func callers(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return strconv.Itoa(n) + " callers"
}

func latency(ns float64) string {
	if d := time.Duration(ns); d >= 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%s µs", thousands(ns/float64(time.Microsecond)))
}

// thousands formats a number without its fraction, with its digits in groups of three.
func thousands(x float64) string {
	digits := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
