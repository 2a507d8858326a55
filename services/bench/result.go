package bench

import "time"

// ProcessCPU is the CPU time that a process used during a sample.
type ProcessCPU struct {
	// Process is the name of the process, for example "gateway". The process that generates the load is "load".
	Process string
	// Used is the sum of user time and system time.
	Used time.Duration
}

// Sample is one measurement of one cell.
type Sample struct {
	Cell string
	// Callers is the number of callers, each with one connection.
	Callers int
	// Round is the number of the round, counted from 0.
	Round int
	// Calls is the number of calls that received a response within Elapsed.
	Calls   int
	Elapsed time.Duration
	// P50 and P99 are percentiles of the calls' latency.
	P50, P99 time.Duration
	// CPU contains the CPU time of each process of the cell. It is empty if the system does not report CPU times.
	CPU []ProcessCPU
	// Foreign is the share of the machine's CPU time, from 0 to 1, that was used by programs other than the benchmark's
	// processes.
	Foreign float64
	// Repeats is how often the measurement was repeated.
	Repeats int
}

// Rate returns the number of calls per second.
func (s Sample) Rate() float64 { return float64(s.Calls) / s.Elapsed.Seconds() }

// Results are the results of a run. If the run was interrupted, they contain only complete samples.
type Results struct {
	// Samples are in the order in which they were measured.
	Samples []Sample
	// Failures describes the measurements that failed, and why they failed.
	Failures []string
}

// MeshCPU returns the CPU time per call, in seconds, of all processes except the load generator and the echo server.
func (s Sample) MeshCPU() float64 {
	var used time.Duration
	for _, p := range s.CPU {
		if p.Process != "load" && p.Process != "echo" {
			used += p.Used
		}
	}
	return used.Seconds() / float64(s.Calls)
}

// Ratio divides a cell's rate by the rate of the cell Floor in each round, and returns a summary of these ratios. It
// uses only the samples with the given number of callers.
func (r *Results) Ratio(cell string, callers int) Spread {
	return r.Against(cell, Floor, callers, Sample.Rate)
}

// Against compares a cell with another cell. It uses only the samples with the given number of callers. In each round,
// it divides the value of the cell by the value of the other cell, and it returns a summary of these ratios. The
// function number returns the value of a sample.
func (r *Results) Against(cell, other string, callers int, number func(Sample) float64) Spread {
	others := make(map[int]float64)
	for _, s := range r.of(other, callers) {
		others[s.Round] = number(s)
	}
	var ratios []float64
	for _, s := range r.of(cell, callers) {
		if by := others[s.Round]; by > 0 {
			ratios = append(ratios, number(s)/by)
		}
	}
	return Summarize(ratios)
}

// Over summarizes the values that the given function returns for the samples of a cell with the given number of
// callers.
func (r *Results) Over(cell string, callers int, number func(Sample) float64) Spread {
	var values []float64
	for _, s := range r.of(cell, callers) {
		values = append(values, number(s))
	}
	return Summarize(values)
}

// PerCall returns the CPU time per call of each process of a cell, in the order of Sample.CPU. The times are medians
// over the rounds.
func (r *Results) PerCall(cell string, callers int) []ProcessCPU {
	var names []string
	values := make(map[string][]float64)
	for _, s := range r.of(cell, callers) {
		for _, p := range s.CPU {
			if values[p.Process] == nil {
				names = append(names, p.Process)
			}
			values[p.Process] = append(values[p.Process], float64(p.Used)/float64(s.Calls))
		}
	}
	out := make([]ProcessCPU, len(names))
	for i, name := range names {
		out[i] = ProcessCPU{Process: name, Used: time.Duration(Summarize(values[name]).Median)}
	}
	return out
}

// Disturbed returns the number of samples in which Foreign exceeds [MaxForeign], and the number of all samples.
func (r *Results) Disturbed() (disturbed, all int) {
	for _, s := range r.Samples {
		if s.Foreign > MaxForeign {
			disturbed++
		}
	}
	return disturbed, len(r.Samples)
}

func (r *Results) of(cell string, callers int) []Sample {
	var out []Sample
	for _, s := range r.Samples {
		if s.Cell == cell && s.Callers == callers && s.Calls > 0 {
			out = append(out, s)
		}
	}
	return out
}
